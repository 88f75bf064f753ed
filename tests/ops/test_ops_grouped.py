"""Groups of rows (docs/numerics.md section 10): any sizes and number, on the device, each group by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_nvfp4
from jax_nvfp4 import MXFP8, NVFP4, RHT, QuantSpec, oracle
from jax_nvfp4.testing import arrays, assert_same_bytes, key_words, make, random_key

HADAMARD = QuantSpec(rht=RHT())
SWIZZLED = QuantSpec(scale_layout="swizzled")


def packed(rows, columns=48, dtype="bfloat16"):
    """Rows whose magnitudes differ by binades, so that a wrong group shows."""
    scale = np.exp2(np.arange(rows) % 23 - 11)[:, None]
    return (make("normal", (rows, columns), "float32") * scale).astype(dtype)


def sizes_of(count, multiple, rows):
    """`count` sizes, some of them empty, which leave rows over."""
    sizes = np.random.default_rng(count).integers(0, 3, count) * multiple
    while sizes.sum() > rows:
        sizes[np.argmax(sizes)] -= multiple
    return sizes


def check(t, expected, what):
    for actual, wanted in zip(arrays(t), arrays(expected), strict=True):
        assert_same_bytes(actual, wanted, what)


@pytest.mark.parametrize("count", [1, 3, 64, 65, 256, 288])
def test_any_number_of_groups(count):
    rows = 32 * min(count, 100) + 64
    x, sizes = packed(rows), sizes_of(count, 16, rows)
    row, column = jax.jit(
        lambda x, sizes: jax_nvfp4.grouped_quantize_dual(x, sizes, col_spec=HADAMARD, key=random_key())
    )(x, sizes)
    expected = oracle.grouped_quantize_dual(x, sizes, col_spec=HADAMARD, key=key_words(random_key()))
    check(row, expected[0], "row")
    check(column, expected[1], "column")


@pytest.mark.parametrize("sizes", [[1, 127, 129, 15, 0, 240], [0, 0, 512], [512, 0, 0], [0, 0, 0], []], ids=str)
def test_ragged_groups_rowwise(sizes):
    x = packed(512)
    check(
        jax_nvfp4.grouped_quantize(x, np.array(sizes, np.int32)),
        oracle.grouped_quantize(x, np.array(sizes, np.int32)),
        str(sizes),
    )


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_group_is_a_dense_operand(axis):
    x, sizes = packed(256), [64, 0, 32, 112]
    whole = jax_nvfp4.grouped_quantize(x, sizes, axis=axis, key=random_key())
    start = 0
    for group, size in enumerate(sizes):
        if size:
            part = jax_nvfp4.quantize(x[start : start + size], axis=axis, key=random_key(), origin=(0, start, 0))
            rows = slice(start, start + size)
            codes = whole.codes[rows] if axis == -1 else whole.codes[:, start // 2 : (start + size) // 2]
            assert_same_bytes(codes, part.codes, f"group {group}")
            assert_same_bytes(whole.amax[group], part.amax, f"amax of group {group}")
        start += size
    assert whole.amax[1] == 0  # empty


@pytest.mark.parametrize("kind", [list, np.int64, np.uint32, np.int8])
def test_sizes_of_any_integer_type(kind):
    x = packed(64)
    sizes = [16, 48] if kind is list else np.array([16, 48], kind)
    check(jax_nvfp4.grouped_quantize(x, sizes), oracle.grouped_quantize(x, [16, 48]), str(kind))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_other_groups_and_capacity_do_not_matter(value):
    x = packed(128, dtype="float32")
    expected = jax_nvfp4.grouped_quantize_dual(x, [32, 48], col_spec=HADAMARD)
    spoiled = x.copy()
    spoiled[40] = spoiled[100] = value  # in the second group, and after the last
    actual = jax_nvfp4.grouped_quantize_dual(spoiled, [32, 48], col_spec=HADAMARD)
    for a, e in zip(actual, expected, strict=True):
        first = (slice(0, 32), slice(None)) if a.axis == -1 else (slice(None), slice(0, 16))
        assert_same_bytes(a.codes[first], e.codes[first], "codes of the first group")
        assert_same_bytes(a.amax[0], e.amax[0], "amax of the first group")
        after = (slice(80, None), slice(None)) if a.axis == -1 else (slice(None), slice(40, None))
        assert not np.asarray(a.codes[after]).any()
        assert not np.asarray(a.scales)[after if a.axis == -1 else (slice(None), slice(5, None))].view(np.uint8).any()


@pytest.mark.parametrize("spec", [SWIZZLED, QuantSpec(rht=RHT(), scale_layout="swizzled"), MXFP8], ids=str)
def test_swizzled_columns_restart_with_every_group(spec):
    x, sizes = packed(640, 80), [128, 0, 256, 128]
    t = jax_nvfp4.grouped_quantize(x, sizes, spec, axis=-2)
    expected = oracle.grouped_quantize(x, sizes, spec, axis=-2)
    check(t, expected, "column")
    assert_same_bytes(jax_nvfp4.dequantize(t), oracle.dequantize(expected), "values")


def test_amax_of_groups():
    x, sizes = packed(256), [64, 0, 32, 112]
    for options in ({}, {"rht": RHT()}):
        assert_same_bytes(
            jax_nvfp4.grouped_amax(x, sizes, **options), oracle.grouped_amax(x, sizes, **options), str(options)
        )
    both = jax_nvfp4.grouped_amax(x, sizes, rht=RHT(0x1234), dual=True)
    for a, e in zip(both, oracle.grouped_amax(x, sizes, rht=RHT(0x1234), dual=True), strict=True):
        assert_same_bytes(a, e, "dual")


@pytest.mark.parametrize(
    "sizes, axis, said",
    [
        ([5, 3], -2, r"group_sizes\[0\] = 5 is not a multiple of 16.*pad_groups"),
        ([-16, 32], -1, r"group_sizes\[0\] = -16 is negative"),
        ([48, 32], -1, "add up to more than the 64 rows of x at group 1"),
    ],
)
def test_wrong_sizes_are_errors_on_the_cpu(sizes, axis, said):
    if jax.default_backend() != "cpu":
        pytest.skip("on a GPU the results are NaN instead")
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=said):
        jax.block_until_ready(jax_nvfp4.grouped_quantize(packed(64), sizes, axis=axis).codes)


@pytest.mark.parametrize(
    "call, error, said",
    [
        (lambda x: jax_nvfp4.grouped_quantize(x, [1.5]), TypeError, "group_sizes must be integers, got float"),
        (lambda x: jax_nvfp4.grouped_quantize(x, [[64]]), ValueError, r"group_sizes must have shape \('E',\)"),
        (lambda x: jax_nvfp4.grouped_quantize(x, [64], jax_nvfp4.NVFP4_2D), ValueError, "NVFP4 has them"),
        (lambda x: jax_nvfp4.grouped_quantize(x, [64], HADAMARD), ValueError, "runs along axis -2 only"),
        (lambda x: jax_nvfp4.grouped_quantize(x, [64], tail="keep"), ValueError, "tail must be one of"),
        (lambda x: jax_nvfp4.grouped_quantize(x, [64], SWIZZLED, axis=-2), ValueError, "multiple of 128 rows"),
        (lambda x: jax_nvfp4.quantize(x, QuantSpec(scope="group")), ValueError, "use jax_nvfp4.grouped_quantize"),
        (lambda x: jax_nvfp4.pad_groups(x, [64], 0), ValueError, "multiple must be a positive int"),
    ],
)
def test_arguments(call, error, said):
    with pytest.raises(error, match=said):
        call(packed(64))


def test_padding_groups_and_back():
    x, sizes = packed(96), np.array([5, 0, 30, 7, 16])
    for multiple in (16, 32, 128):
        padded, padded_sizes = jax.jit(jax_nvfp4.pad_groups, static_argnums=2)(x, sizes, multiple)
        expected, expected_sizes = oracle.pad_groups(x, sizes, multiple)
        assert_same_bytes(padded, expected, "padded")
        assert (np.asarray(padded_sizes) == expected_sizes).all() and not (np.asarray(padded_sizes) % multiple).any()
        back = jax_nvfp4.unpad_groups(padded, sizes, 96, multiple)
        assert_same_bytes(back[:58], x[:58], "back")
        assert not np.asarray(back[58:]).any()
    gradient = jax.grad(lambda x: (jax_nvfp4.pad_groups(x, sizes)[0] ** 2).sum())(jnp.asarray(x, jnp.float32))
    np.testing.assert_array_equal(gradient[:58], 2 * x[:58].astype(np.float32))
    assert not np.asarray(gradient[58:]).any()


@pytest.mark.parametrize("shards", [2, 4, 8])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_a_group_that_spans_shards(shards, kind):
    """One amax and one random stream, wherever the tokens lie."""
    if jax.device_count() < shards:
        pytest.skip("too few devices")
    x, sizes = packed(512, 64), np.array([80, 0, 256, 112])
    expected = oracle.grouped_quantize_dual(x, sizes, col_spec=HADAMARD, key=key_words(random_key()))
    mesh = jax.make_mesh((shards,), ("d",), axis_types=(kind,), devices=jax.devices()[:shards])
    for spec in (PartitionSpec("d", None), PartitionSpec(None, "d")):
        if spec[1] and 64 // shards % 16:
            continue
        with jax.set_mesh(mesh):
            sharded = jax.device_put(x, NamedSharding(mesh, spec))
            results = jax.jit(lambda x: jax_nvfp4.grouped_quantize_dual(x, sizes, col_spec=HADAMARD, key=random_key()))(
                sharded
            )
        for t, e in zip(results, expected, strict=True):
            check(t, e, f"{shards} {spec}")


def test_vmap():
    x = np.stack([packed(64), packed(64) * 2])
    sizes = np.array([[16, 32], [48, 0]])
    t = jax.vmap(lambda x, s: jax_nvfp4.grouped_quantize(x, s, NVFP4, axis=-2))(x, sizes)
    for i in range(2):
        single = oracle.grouped_quantize(x[i], sizes[i], axis=-2)
        assert_same_bytes(t.codes[i], single.codes, "codes")
        assert_same_bytes(t.amax[i], single.amax, "amax")
