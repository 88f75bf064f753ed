"""`BlockScaled`: it says what it holds, is transparent to JAX, and is transposed by renaming."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, BlockScaled, QuantSpec
from jax_nvfp4.testing import arrays, assert_same_bytes, make

MODES = [
    (NVFP4, -1),
    (NVFP4, -2),
    (NVFP4_2D, -2),
    (QuantSpec(scope="row"), -1),
    (QuantSpec(scale_layout="swizzled"), -2),
]


def quantized(spec=NVFP4, axis=-1, shape=(2, 32, 64)):
    return jax_nvfp4.quantize(make("nan_block", shape, "bfloat16"), spec, axis=axis)


def assert_equal(a, b):
    for field, x, y in zip(("codes", "scales", "amax"), arrays(a), arrays(b), strict=True):
        assert_same_bytes(x, y, field)
    assert (a.spec, a.axis) == (b.spec, b.axis)


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_pytree_keeps_every_field(spec, axis):
    """NVIDIA/TransformerEngine#2270: a quantizer's state lost by its flatten."""
    t = quantized(spec, axis)
    leaves, tree = jax.tree.flatten(t)
    assert_equal(jax.tree.unflatten(tree, leaves), t)
    assert_equal(jax.jit(lambda t: t)(t), t)


@pytest.mark.parametrize(
    "spec, axis, names",
    [
        (NVFP4, -1, [".codes", ".scales", ".amax"]),
        (NVFP4_2D, -1, [".codes", ".scales", ".amax"]),
        (NVFP4, -2, [".codes_T", ".scales_T", ".amax"]),
        (QuantSpec(scope="row"), -1, [".codes", ".scales", ".amax_row"]),
        (QuantSpec(scale_layout="swizzled"), -1, [".codes", ".scales_swizzled", ".amax"]),
        (QuantSpec(scale_layout="swizzled"), -2, [".codes_T", ".scales_T_swizzled", ".amax"]),
    ],
    ids=str,
)
def test_leaves_are_named_for_what_their_bytes_mean(spec, axis, names):
    paths = jax.tree_util.tree_leaves_with_path(quantized(spec, axis))
    assert [jax.tree_util.keystr(path) for path, _ in paths] == names


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_shape(spec, axis):
    t = quantized(spec, axis)
    assert t.shape == (2, 32, 64) and t.ndim == 3
    assert jax_nvfp4.dequantize(t).shape == t.shape


def test_transpose_renames_the_axis_of_the_blocks():
    """meta-pytorch/ao#4477: data transposed without its scales. Square, so that a mistake has the right shape."""
    x = make("normal", (128, 128), "float32") * np.arange(1, 129, dtype=np.float32)[:, None]
    t = jax_nvfp4.quantize(x)
    assert t.T.axis == -2
    assert_equal(t.T.T, t)
    assert_same_bytes(jax_nvfp4.dequantize(t.T), jax_nvfp4.dequantize(t).T, "values")
    assert t.T.codes is t.codes and t.T.scales is t.scales


def test_row_scope_has_no_transpose():
    """Its amax would be one per column."""
    with pytest.raises(ValueError, match="scope='row' .* axis -2.*transpose the dequantized array"):
        _ = quantized(QuantSpec(scope="row")).T


def test_columnwise_is_rowwise_of_the_transpose():
    x = make("block_spread", (64, 48), "bfloat16")
    assert_equal(jax_nvfp4.quantize(x, axis=-2), jax_nvfp4.quantize(x.T).T)


def test_odd_nibbles_are_copied():
    """A slice that starts in the middle of a byte of codes."""
    t = quantized(shape=(3, 32))
    codes = np.asarray(t.codes)
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(3, 32)
    shifted = unpacked[:, 1:-1]
    repacked = shifted[:, ::2] | shifted[:, 1::2] << 4
    expected = np.asarray(jax_nvfp4.decode(t))
    values = np.asarray(
        jax_nvfp4.decode(
            dataclasses.replace(
                t, codes=jnp.asarray(np.pad(repacked, ((0, 0), (0, 1)))), scales=jnp.ones_like(t.scales)
            )
        )
    )
    scales = np.repeat(np.asarray(t.scales).astype(np.float32), 16, -1)[:, 1:-1]
    np.testing.assert_array_equal(values[:, :-2].astype(np.float32) * scales, expected[:, 1:-1].astype(np.float32))


SHAPES = [(16, 16), (32, 64), (2, 32, 64), (0, 32), (2, 0, 16), (3, 2, 16, 32)]
AVAL = jax.ShapeDtypeStruct
E4M3 = jnp.float8_e4m3fn
ROW_SCOPE, SWIZZLED = QuantSpec(scope="row"), QuantSpec(scale_layout="swizzled")


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("leaf", [lambda a: a, np.asarray, lambda a: AVAL(a.shape, a.dtype)], ids=["jax", "np", "aval"])
def test_what_quantize_makes_is_accepted(spec, axis, shape, leaf):
    t = quantized(spec, axis, shape)
    made = BlockScaled(*map(leaf, arrays(t)), t.spec, t.axis)
    assert made.shape == shape and made.nbytes == sum(a.nbytes for a in arrays(t)) and made.dtype == t.dtype


def good(**changes):
    """The fields of a container of (32, 64), with some changed."""
    fields = {
        "codes": jnp.zeros((32, 32), jnp.uint8),
        "scales": jnp.zeros((32, 4), E4M3),
        "amax": jnp.float32(1),
        "spec": NVFP4,
        "axis": -1,
    }
    return fields | changes


IMPOSSIBLE = {
    "axis 1": (good(axis=1), ValueError, ("-1 or -2", "vmap", "got 1")),
    "axis 0": (good(axis=0), ValueError, ("-1 or -2", "got 0")),
    "axis 5": (good(axis=5), ValueError, ("-1 or -2", "got 5")),
    "axis -3": (good(axis=-3), ValueError, ("-1 or -2", "got -3")),
    "axis 1.0": (good(axis=-1.0), TypeError, ("int -1 or -2", "got -1.0")),
    "axis True": (good(axis=True), TypeError, ("int -1 or -2", "got True")),
    "axis None": (good(axis=None), TypeError, ("int -1 or -2", "got None")),
    "spec": (good(spec="nvfp4"), TypeError, ("'nvfp4'", "QuantSpec", "jax_nvfp4.NVFP4")),
    "spec, an array": (good(spec=np.zeros((99, 99))), TypeError, ("float64[99,99]", "QuantSpec")),
    "amax per row": (
        good(amax=jnp.zeros(32, jnp.float32)),
        ValueError,
        ("amax must have shape ()", "'tensor'", "got (32,)"),
    ),
    "amax of shape (1,)": (good(amax=jnp.zeros(1, jnp.float32)), ValueError, ("amax must have shape ()", "got (1,)")),
    "amax per matrix": (good(spec=ROW_SCOPE), ValueError, ("amax must have shape (32,)", "'row'", "got ()")),
    "row scope columnwise": (
        good(spec=ROW_SCOPE, amax=jnp.zeros(32, jnp.float32), axis=-2),
        ValueError,
        ("scope='row'", "axis -2", "scope='tensor'"),
    ),
    "codes of 5 rows, scales of 32": (
        good(codes=jnp.zeros((5, 32), jnp.uint8)),
        ValueError,
        ("scales must have shape (5, 4)", "codes of shape (5, 32)", "got (32, 4)"),
    ),
    "scales of another K": (
        good(scales=jnp.zeros((32, 3), E4M3)),
        ValueError,
        ("scales must have shape (32, 4)", "got (32, 3)"),
    ),
    "scales of another batch": (
        good(codes=jnp.zeros((2, 32, 32), jnp.uint8), amax=jnp.zeros(2, jnp.float32)),
        ValueError,
        ("scales must have shape (2, 32, 4)", "got (32, 4)"),
    ),
    "linear scales as swizzled ones": (good(spec=SWIZZLED), ValueError, ("shape (128, 4)", "swizzled", "got (32, 4)")),
    "swizzled scales as linear ones": (
        good(scales=jnp.zeros((128, 4), E4M3)),
        ValueError,
        ("shape (32, 4)", "linear", "got (128, 4)"),
    ),
    "half a block": (
        good(codes=jnp.zeros((32, 30), jnp.uint8)),
        ValueError,
        ("(32, 30)", "60 elements", "(1, 16)", "pad_to_blocks"),
    ),
    "half a tile": (
        good(codes=jnp.zeros((24, 32), jnp.uint8), scales=jnp.zeros((24, 4), E4M3), spec=NVFP4_2D),
        ValueError,
        ("24 rows", "(16, 16)", "pad_to_blocks"),
    ),
    "codes of rank 1": (good(codes=jnp.zeros(32, jnp.uint8)), ValueError, ("rank >= 2", "(32,)")),
    "codes dtype": (good(codes=jnp.zeros((32, 32), jnp.int8)), TypeError, ("codes", "uint8, got int8", "view")),
    "scales dtype": (
        good(scales=jnp.zeros((32, 4), jnp.uint8)),
        TypeError,
        ("scales", "float8_e4m3fn, got uint8", "view"),
    ),
    "amax dtype": (good(amax=jnp.bfloat16(1)), TypeError, ("amax", "float32, got bfloat16", "astype")),
    "amax, a number": (good(amax=2.5), TypeError, ("amax", "an array", "got 2.5")),
    "amax, none": (good(amax=None), TypeError, ("amax", "an array", "got None")),
    "scales, a list": (good(scales=[[1.0] * 4] * 32), TypeError, ("scales", "an array", "got [[1.0")),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_says_what_does_not_fit(case):
    fields, error, parts = IMPOSSIBLE[case]

    def check(fields):
        with pytest.raises(error) as raised:
            BlockScaled(**fields)
        for part in parts:
            assert part in str(raised.value)

    check(fields)
    is_array = {name: hasattr(value, "shape") for name, value in fields.items()}
    check({n: AVAL(v.shape, v.dtype) if is_array[n] and n != "spec" else v for n, v in fields.items()})
    if "spec" not in case:
        leaves = {n: v for n, v in fields.items() if is_array[n]}
        jax.eval_shape(lambda leaves: check(fields | leaves), leaves)


def test_an_axis_may_be_a_numpy_integer():
    axis = BlockScaled(**good(axis=np.int64(-2))).axis
    assert type(axis) is int and axis == -2


@pytest.mark.parametrize("use", [jax_nvfp4.dequantize, jax_nvfp4.decode, lambda t: jax_nvfp4.save("/dev/null", t)])
def test_operations_check_what_jax_made(use):
    """A container out of `jax.tree` is unchecked until it is used."""
    t = quantized()
    with pytest.raises(ValueError, match=r"scales must have shape \(2, 4, 4\).*got \(2, 32, 4\)"):
        use(jax.tree.map(lambda a: a[:, :4] if a.dtype == jnp.uint8 else a, t))
    with pytest.raises(TypeError, match="codes .* must be an array, got None"):
        use(jax.tree.map(lambda a: None, t))
    with pytest.raises(TypeError, match="codes of nvfp4.* must be uint8, got float32"):
        use(jax.tree.map(lambda a: a.astype(jnp.float32), t))


def test_jax_may_put_anything_in_it():
    t = quantized()
    for put in (lambda a: object(), lambda a: None, lambda a: a.shape, lambda a: P(), lambda a: a[0], lambda a: str(a)):
        mapped = jax.tree.map(put, t)
        assert isinstance(mapped, BlockScaled) and (mapped.spec, mapped.axis) == (t.spec, t.axis)
        assert repr(mapped)
    mesh = jax.make_mesh((1,), ("d",))
    shardings = BlockScaled(*[NamedSharding(mesh, P("d"))] * 3, NVFP4, -1)
    assert_equal(jax.jit(lambda t: t, in_shardings=(shardings,), out_shardings=shardings)(t), t)
    placed = jax.device_put(t, shardings)
    assert_equal(placed, t)
    specs = BlockScaled(P("d"), P("d"), P("d"), NVFP4, -1)
    assert_equal(jax.shard_map(lambda t: t, mesh=mesh, in_specs=(specs,), out_specs=specs)(placed), t)


def test_under_vmap_and_scan():
    """Leaves lose and gain a leading axis together."""
    x = make("normal", (3, 32, 64), "bfloat16")
    whole = jax_nvfp4.quantize(x)
    axes = BlockScaled(0, 0, 0, NVFP4, -1)
    assert_equal(jax.vmap(jax_nvfp4.quantize)(x), whole)
    values = jax.vmap(jax_nvfp4.dequantize, in_axes=(axes,))(whole)
    assert_same_bytes(values, jax_nvfp4.dequantize(whole), "values")
    moved = jax.vmap(lambda t: dataclasses.replace(t), in_axes=(axes,), out_axes=BlockScaled(1, 1, 0, NVFP4, -1))(whole)
    assert moved.codes.shape == (32, 3, 32)  # not a container of anything, and no error of ours
    _, stacked = jax.lax.scan(lambda carry, t: (carry, dataclasses.replace(t.T).T), 0, whole)
    assert_equal(stacked, whole)
    carried, _ = jax.lax.scan(lambda t, x: (jax_nvfp4.quantize(x), None), jax_nvfp4.quantize(x[0]), x)
    assert_equal(carried, jax_nvfp4.quantize(x[2]))


def test_repr_has_no_arrays():
    text = "BlockScaled(codes=uint8[2,32,32], scales=float8_e4m3fn[2,32,4], amax=float32[2], spec=QuantSpec("
    for t in (quantized(), jax.eval_shape(quantized)):
        assert repr(t).startswith(text) and repr(t).endswith("axis=-1)")


def test_dtype_is_that_of_an_element():
    assert quantized().dtype == jnp.float4_e2m1fn
    assert quantized().nbytes == 2 * 32 * 32 + 2 * 32 * 4 + 2 * 4


def test_equality_is_identity():
    t = quantized()
    assert t == t and t != dataclasses.replace(t) and len({t, t, dataclasses.replace(t)}) == 2
    assert t in [t] and t not in [dataclasses.replace(t)]


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, jnp.sum, lambda t: jnp.ones(3) * t, jax_nvfp4.quantize])
def test_it_is_not_an_array(convert):
    with pytest.raises(TypeError, match="a BlockScaled.*dequantize"):
        convert(quantized())


def test_copies():
    t = quantized(NVFP4, -2)
    for again in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert_equal(again, t)


@pytest.mark.parametrize("spec", [NVFP4, ROW_SCOPE], ids=str)
@pytest.mark.parametrize("scalar", [False, True])
def test_outlives_the_amax_it_was_given(spec, scalar):
    x = make("normal", (32, 64), "float32")
    given = jnp.float32(4) if scalar else jax_nvfp4.amax(x, scope=spec.scope)
    made = [jax_nvfp4.quantize(x, spec, amax=given), jax_nvfp4.qdq(x, spec, amax=given)]
    if spec == NVFP4:
        made += [*jax_nvfp4.quantize_dual(x, amax=given), *jax_nvfp4.quantize_dual(x, NVFP4_2D, col_amax=given)]
    given.delete()
    jax.block_until_ready(jax.tree.map(lambda a: a + jnp.zeros((), a.dtype), made))


def test_results_of_one_call_are_donated_one_by_one():
    for spec in (NVFP4, NVFP4_2D):
        row, col = jax_nvfp4.quantize_dual(make("normal", (32, 64), "float32"), spec)
        expected = np.asarray(jax_nvfp4.dequantize(col))
        jax.tree.map(lambda a: a.delete(), row)
        assert_same_bytes(jax_nvfp4.dequantize(col), expected, "values")
