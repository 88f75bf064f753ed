"""Every operation on a sharded operand gives the bytes of the whole one, and gathers nothing where blocks are whole."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, oracle
from jax_nvfp4.testing import CASES, Case, arrays, assert_same_bytes, key_words, make, random_key
from jax_nvfp4.testing.cases import COL, DUAL, SWIZZLED

LAYOUTS = {
    "rows": ((-1,), (256, 256), ("a", None)),
    "columns": ((-1,), (256, 256), (None, "a")),
    "rows and columns": ((-1, 2), (256, 256), ("a", "b")),
    "rows over two axes": ((-1, 2), (256, 256), (("a", "b"), None)),
    "one axis of two": ((-1, 2), (256, 256), (None, "b")),
    "batch": ((-1,), (8, 32, 64), ("a", None, None)),
    "batch and rows": ((-1, 2), (8, 32, 64), ("a", "b", None)),
}
FEW = (Case("amax"), Case("quantize"), Case("quantize", axes=COL, is_stochastic=True), Case("quantize", NVFP4_2D, DUAL))
SHARDED = [
    (case, layout)
    for case in CASES
    for layout in LAYOUTS
    if layout in ("rows", "columns", "batch and rows") or case in FEW
]


def name(value):
    return getattr(value, "name", str(value))


def shards(spec, mesh) -> tuple[int, int]:
    """Into how many pieces M and K are split."""
    rows, columns = (axes if isinstance(axes, tuple) else (axes,) for axes in spec[-2:])
    return tuple(math.prod(mesh.shape[a] for a in axes if a) for axes in (rows, columns))


def is_unswizzled_by_xla(case) -> bool:
    """Whether scales are brought back to rows first, by a reshape that is XLA's to partition."""
    return case.reads_codes and case.is_swizzled


def check(case, x, results):
    for i, (actual, expected) in enumerate(zip(results, case.reference(x), strict=True)):
        assert_same_bytes(actual, expected, f"{case.name} result {i}")
        for shard in actual.addressable_shards:  # replicas too
            assert_same_bytes(shard.data, expected[shard.index], f"{case.name} result {i} on {shard.device}")


@pytest.mark.parametrize("case, layout", SHARDED, ids=name)
def test_auto_axes(case, layout, make_mesh, put):
    """jax-ml/jax#38551, marin-community/marin#6470: a sharded operand of a custom call gathered silently."""
    shape, dims, spec = LAYOUTS[layout]
    mesh = make_mesh(*shape)
    x = make("outlier", dims, "bfloat16")
    sharded = put(x, mesh, *spec)
    program = jax.jit(case.run).lower(sharded).compile()
    check(case, x, program(sharded))
    if case.holds_whole_blocks(dims, shards(spec, mesh)) and not is_unswizzled_by_xla(case):
        assert "all-gather(" not in program.as_text()


@pytest.mark.parametrize("case, layout", [pair for pair in SHARDED if not is_unswizzled_by_xla(pair[0])], ids=name)
def test_explicit_axes(case, layout, make_mesh, put):
    shape, dims, spec = LAYOUTS[layout]
    mesh = make_mesh(*shape, explicit=True)
    x = make("outlier", dims, "bfloat16")
    with jax.set_mesh(mesh):
        sharded = put(x, mesh, *spec)
        cut = case.cut(dims, shards(spec, mesh))
        if cut is None:
            check(case, x, jax.jit(case.run)(sharded))
        else:
            with pytest.raises(ValueError, match=rf"cuts blocks of {cut}: replicate it first"):
                jax.jit(case.run)(sharded)


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_results_are_sharded_like_the_operand(axis, explicit, make_mesh, put):
    mesh = make_mesh(-1, 2, explicit=explicit)
    with jax.set_mesh(mesh):
        x = put(make("normal", (256, 256), "bfloat16"), mesh, "a", "b")
        t = jax.jit(lambda x: jax_nvfp4.quantize(x, axis=axis))(x)
        spec = P("a", "b") if axis == -1 else P("b", "a")
        for result in (t.codes, t.scales):
            assert result.sharding.is_equivalent_to(jax.NamedSharding(mesh, spec), 2)
        assert t.amax.sharding.is_fully_replicated
        assert jax.jit(jax_nvfp4.qdq)(x).sharding.is_equivalent_to(x.sharding, 2)
        assert jax.jit(jax_nvfp4.dequantize)(t).sharding.is_equivalent_to(x.sharding, 2)


def test_typed_scales_enter_a_shard_map(make_mesh, put):
    """sgl-project/sglang-jax#1499, #1513: block scales that lose their axes, which shard_map then refuses."""
    mesh = make_mesh(-1, explicit=True)
    with jax.set_mesh(mesh):
        x = put(make("normal", (256, 64), "bfloat16"), mesh, "a", None)

        @jax.jit
        def f(x):
            t = jax_nvfp4.quantize(x)
            for typed in (t.codes, t.scales):
                assert jax.typeof(typed).sharding.spec == P("a", None)
            assert jax.typeof(t.amax).sharding.spec == P()
            decode = jax.shard_map(
                lambda codes, scales, amax: jax_nvfp4.dequantize(
                    jax_nvfp4.BlockScaled(codes, scales, amax, NVFP4, -1), jnp.float32
                ),
                in_specs=(P("a"), P("a"), P()),
                out_specs=P("a"),
            )
            return decode(t.codes, t.scales, t.amax)

        assert_same_bytes(f(x), jax_nvfp4.dequantize(jax_nvfp4.quantize(np.asarray(x)), jnp.float32), "values")


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize(
    "run, reference, shape, spec",
    [
        (lambda x: arrays(jax_nvfp4.quantize(x)), lambda x: arrays(oracle.quantize(x)), (8, None), (None, "a")),
        (
            lambda x: arrays(jax_nvfp4.quantize(x, axis=-2)),
            lambda x: arrays(oracle.quantize(x, axis=-2)),
            (None, 16),
            ("a", None),
        ),
        (lambda x: (jax_nvfp4.qdq(x, NVFP4_2D),), lambda x: (oracle.qdq(x, NVFP4_2D),), (None, 16), ("a", None)),
    ],
    ids=["rowwise", "columnwise", "16x16 qdq"],
)
def test_shards_inside_a_block(run, reference, shape, spec, explicit, make_mesh, put, devices):
    """vllm-project/vllm#49949, #30260: shards of 8 elements must not become blocks of 8."""
    mesh = make_mesh(-1, explicit=explicit)
    x = make("normal", tuple(n or 8 * devices for n in shape), "bfloat16")
    with jax.set_mesh(mesh):
        sharded = put(x, mesh, *spec)
        if explicit:
            with pytest.raises(ValueError, match=r"mesh axes \('a',\) into shards of 8, which cuts blocks of 16"):
                jax.jit(run)(sharded)
        else:
            for actual, expected in zip(jax.jit(run)(sharded), reference(x), strict=True):
                assert_same_bytes(actual, expected, "result")


def test_odd_sizes(make_mesh, put, devices):
    """A dimension that the mesh does not divide, and rows fewer than devices."""
    mesh = make_mesh(-1)
    for rows in (1, devices - 1, devices + 1):
        x = make("normal", (rows, 48), "bfloat16")
        sharded = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P("a"))))(x)
        for actual, expected in zip(
            jax.jit(lambda x: arrays(jax_nvfp4.quantize(x)))(sharded), arrays(oracle.quantize(x)), strict=True
        ):
            assert_same_bytes(actual, expected, f"{rows} rows")


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_amax_is_global(explicit, make_mesh, put):
    """NVIDIA/TransformerEngine#1647, #2218: an amax per shard makes the loss depend on the mesh."""
    mesh = make_mesh(-1, explicit=explicit)
    x = np.ones((64, 64), np.float32)
    x[5] = 100
    with jax.set_mesh(mesh):
        t = jax.jit(jax_nvfp4.quantize)(put(x, mesh, "a", None))
    assert [float(shard.data) for shard in t.amax.addressable_shards] == [100.0] * mesh.size
    assert_same_bytes(t.codes, oracle.quantize(x).codes, "codes")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("spec", [("a", None), (None, "a")])
def test_special_value_of_one_shard_reaches_all(value, spec, make_mesh, put):
    mesh = make_mesh(-1)
    x = make("normal", (128, 128), "float32")
    x[-1, -1] = value
    t = jax.jit(jax_nvfp4.quantize)(put(x, mesh, *spec))
    for shard in t.amax.addressable_shards:
        assert_same_bytes(shard.data, np.float32(value), "amax")
    for actual, expected in zip(arrays(t), arrays(oracle.quantize(x)), strict=True):
        assert_same_bytes(actual, expected, "result")


MESHES = [(1,), (4,), (8,), (2, 4)]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_random_bits_do_not_depend_on_the_mesh(axis, explicit, make_mesh, put, devices):
    """Section 6, all indices are global: rounding is the same on every mesh, with every shard and every replica."""
    x = make("uniform", (128, 256), "float32")
    expected = oracle.quantize(x, axis=axis, key=key_words(random_key())).codes
    experts = make("uniform", (8, 64, 64), "float32")
    expected_experts = oracle.quantize(experts, axis=axis, key=key_words(random_key())).codes
    for shape in MESHES:
        if np.prod(shape) > devices:
            continue
        mesh = make_mesh(*shape, explicit=explicit)
        specs = [("a", None), (None, "a")] if len(shape) == 1 else [("a", "b"), (None, "b"), (None, None)]
        with jax.set_mesh(mesh):
            quantize = jax.jit(lambda x: jax_nvfp4.quantize(x, axis=axis, key=random_key()).codes)
            for spec in specs:
                codes = quantize(put(x, mesh, *spec))
                for shard in codes.addressable_shards:
                    assert_same_bytes(shard.data, expected[shard.index], f"{shape} {spec}")
            codes = quantize(put(experts, mesh, *("a", None, None)))
            assert_same_bytes(codes, expected_experts, f"experts {shape}")
            if len(shape) == 2:
                codes = jax.jit(jax.vmap(quantize))(put(experts, mesh, "b", "a", None))
                assert_same_bytes(codes, expected_experts, f"experts {shape}, vmap")


SHARD_MAPS = {
    "rowwise": (
        lambda x, g, origin: arrays(jax_nvfp4.quantize(x, amax=g))[:2],
        lambda x: arrays(oracle.quantize(x))[:2],
        [P("a", "b")] * 2,
    ),
    "columnwise": (
        lambda x, g, origin: arrays(jax_nvfp4.quantize(x, axis=-2, amax=g))[:2],
        lambda x: arrays(oracle.quantize(x, axis=-2))[:2],
        [P("b", "a")] * 2,
    ),
    "stochastic": (
        lambda x, g, origin: arrays(jax_nvfp4.quantize(x, amax=g, key=random_key(), origin=origin))[:2],
        lambda x: arrays(oracle.quantize(x, key=key_words(random_key())))[:2],
        [P("a", "b")] * 2,
    ),
    "stochastic columnwise": (
        lambda x, g, origin: arrays(jax_nvfp4.quantize(x, axis=-2, amax=g, key=random_key(), origin=origin))[:2],
        lambda x: arrays(oracle.quantize(x, axis=-2, key=key_words(random_key())))[:2],
        [P("b", "a")] * 2,
    ),
    "dual": (
        lambda x, g, origin: [a for t in jax_nvfp4.quantize_dual(x, NVFP4_2D, amax=g) for a in arrays(t)[:2]],
        lambda x: [a for t in oracle.quantize_dual(x, NVFP4_2D) for a in arrays(t)[:2]],
        [P("a", "b")] * 2 + [P("b", "a")] * 2,
    ),
    "qdq": (lambda x, g, origin: [jax_nvfp4.qdq(x, amax=g)], lambda x: [oracle.qdq(x)], [P("a", "b")]),
    "dequantize": (
        lambda x, g, origin: [jax_nvfp4.dequantize(jax_nvfp4.quantize(x, amax=g), x.dtype)],
        lambda x: [oracle.qdq(x)],
        [P("a", "b")],
    ),
}


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("case", SHARD_MAPS)
def test_shard_map(case, explicit, make_mesh, put):
    run, reference, out_specs = SHARD_MAPS[case]
    mesh = make_mesh(-1, 2, explicit=explicit)
    x = make("outlier", (256, 128), "bfloat16")

    def local(x):
        rows, columns = x.shape
        origin = (0, jax.lax.axis_index("a") * rows, jax.lax.axis_index("b") * columns)
        return tuple(run(x, jax_nvfp4.max_over(jax_nvfp4.amax(x), ("a", "b")), origin))

    with jax.set_mesh(mesh):
        f = jax.shard_map(local, mesh=mesh, in_specs=P("a", "b"), out_specs=tuple(out_specs), check_vma=True)
        sharded = put(x, mesh, "a", "b")
        assert "all-gather(" not in jax.jit(f).lower(sharded).compile().as_text()
        for actual, expected in zip(jax.jit(f)(sharded), reference(x), strict=True):
            assert_same_bytes(actual, expected, case)


def test_shard_map_over_one_axis_of_two(make_mesh, put):
    """One axis manual, the other left to the compiler."""
    mesh = make_mesh(-1, 2)
    x = make("normal", (256, 128), "bfloat16")

    @jax.jit
    def f(x):
        def local(x):
            return arrays(jax_nvfp4.quantize(x, amax=jax_nvfp4.max_over(jax_nvfp4.amax(x), ["a"])))[:2]

        return jax.shard_map(local, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)

    for actual, expected in zip(f(put(x, mesh, "a", "b")), arrays(oracle.quantize(x))[:2], strict=True):
        assert_same_bytes(actual, expected, "result")


def test_swizzled_scales_of_whole_tiles_stay_sharded(make_mesh, put, count_all_gathers):
    mesh = make_mesh(2)
    x = make("normal", (256, 192), "bfloat16")
    sharded = put(x, mesh, "a", None)

    def run(x):
        return arrays(jax_nvfp4.quantize(x, SWIZZLED))

    assert count_all_gathers(run, sharded) == 0
    codes, scales, _ = jax.jit(run)(sharded)
    assert scales.addressable_shards[0].data.shape == (128, 12) and codes.addressable_shards[0].data.shape == (128, 96)


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_swizzled_scales_of_cut_tiles(explicit, make_mesh, put):
    mesh = make_mesh(2, explicit=explicit)
    x = make("normal", (192, 64), "bfloat16")
    with jax.set_mesh(mesh):
        sharded = put(x, mesh, "a", None)
        quantize = jax.jit(lambda x: jax_nvfp4.quantize(x, SWIZZLED))
        if explicit:
            with pytest.raises(ValueError, match="shards of 96, which cuts blocks of 128"):
                quantize(sharded)
        else:
            assert_same_bytes(quantize(sharded).scales, oracle.quantize(x, SWIZZLED).scales, "scales")


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_given_amaxes_and_keys_of_sharded_experts(explicit, make_mesh, put):
    mesh = make_mesh(-1, explicit=explicit)
    x, g = make("uniform", (8, 32, 64), "float32"), np.linspace(3, 14, 8, dtype=np.float32)
    keys = jax.random.split(random_key(), 8)
    words = np.stack([key_words(key) for key in keys])
    with jax.set_mesh(mesh):
        codes = jax.jit(jax.vmap(lambda x, g, key: jax_nvfp4.quantize(x, amax=g, key=key).codes))(
            put(x, mesh, "a", None, None), put(g, mesh, "a"), put(keys, mesh, "a")
        )
    assert_same_bytes(codes, oracle.quantize(x, amax=g, key=words).codes, "codes")
