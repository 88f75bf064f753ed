"""Section 10: groups of rows, against a loop over dense operations, and what wrong sizes do."""

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.formats import FORMATS, swizzled_shape
from jax_nvfp4.oracle import (
    amax,
    dequantize,
    grouped_amax,
    grouped_quantize,
    grouped_quantize_dual,
    pad_groups,
    poisoned_amax,
    poisoned_quantize,
    quantize,
    swizzle_scales,
    unpad_groups,
)
from jax_nvfp4.spec import MXFP8, NVFP4, NVFP4_2D, RHT, FourOverSix, QuantSpec
from jax_nvfp4.testing import assert_same_bytes, make

KEY = (5, 6)
SWIZZLED = QuantSpec(scale_layout="swizzled")
SPECS = {
    "nvfp4": NVFP4,
    "four_over_six": QuantSpec(four_over_six=FourOverSix()),
    "mxfp8": MXFP8,
    "mxfp8_floor": QuantSpec("mxfp8", scale_rounding="floor"),
    "swizzled": SWIZZLED,
    "mxfp8_swizzled": QuantSpec("mxfp8", scale_layout="swizzled"),
}
COLUMN_SPECS = {
    **SPECS,
    "rht": QuantSpec(rht=RHT()),
    "rht_swizzled": QuantSpec(rht=RHT(0x2C95), scale_layout="swizzled"),
}


def bytes_of(array):
    return np.ascontiguousarray(array).view(np.uint8)


def sizes_of(count, unit, seed=0):
    """Sizes of `count` groups in multiples of `unit`, some of them empty."""
    return np.random.default_rng([count, seed]).integers(0, 3, count) * unit


def packed(count, unit, columns=48, capacity=1, dtype="bfloat16"):
    """Rows of groups whose magnitudes differ, then capacity rows that must not matter."""
    sizes = sizes_of(count, unit)
    x = make("normal", (int(sizes.sum()) + capacity * unit, columns), "float32")
    x[: sizes.sum()] *= np.exp2(np.arange(count) % 40 - 20.0).repeat(sizes).astype(np.float32)[:, None]
    x[sizes.sum() :] = np.where(np.arange(columns) % 3 == 0, np.nan, 1e30)
    with np.errstate(over="ignore"):
        return x.astype(dtype), sizes


def unit_of(spec, axis):
    return 1 if axis == -1 else 128 if spec.scale_layout == "swizzled" else spec.facts.block


def parts(q):
    """Codes and linear scales, one row per row of x or column per block."""
    return q.codes, bytes_of(q.scales)


def check_against_loop(x, sizes, q, spec, axis, **given):
    """Every group, and capacity, of `q` against a dense quantize of its rows."""
    block, per_byte = spec.facts.block, spec.facts.codes_per_byte
    linear = QuantSpec(spec.format, rht=spec.rht, four_over_six=spec.four_over_six, scale_rounding=spec.scale_rounding)
    starts = np.cumsum(sizes) - sizes
    padded_rows = swizzled_shape((x.shape[1], 4))[0]
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows = slice(start, start + size)
        origin = {"origin": (0, start, 0)} if "key" in given else {}
        dense = quantize(x[rows], linear, axis=axis, **given, **origin)
        if spec.facts.has_amax:
            assert_same_bytes(q.amax[group], dense.amax[()], f"amax of group {group}")
        if axis == -1:
            assert_same_bytes(q.codes[rows], dense.codes, f"codes of group {group}")
        else:
            columns = slice(start // per_byte, (start + size) // per_byte)
            assert_same_bytes(q.codes[:, columns], dense.codes, f"codes of group {group}")
        if spec.scale_layout == "linear":
            mine = q.scales[rows] if axis == -1 else q.scales[:, start // block : (start + size) // block]
            assert_same_bytes(mine, dense.scales, f"scales of group {group}")
        elif axis == -2:
            region = bytes_of(q.scales).reshape(-1)[
                padded_rows * start // block : padded_rows * (start + size) // block
            ]
            expected = bytes_of(swizzle_scales(dense.scales)).reshape(-1)
            assert_same_bytes(region, expected, f"swizzled scales of group {group}")
    used = int(sizes.sum())
    if spec.facts.has_amax:
        assert not (q.codes[used:] if axis == -1 else q.codes[:, used // per_byte :]).any()
    if spec.scale_layout == "linear":
        assert not bytes_of(q.scales[used:] if axis == -1 else q.scales[:, used // block :]).any()
    elif axis == -2:
        assert not bytes_of(q.scales).reshape(-1)[padded_rows * used // block :].any()
    else:
        unused = np.zeros(x.shape, np.float32)
        unused[used:] = 1
        at = swizzle_scales(bytes_of(np.repeat(unused[:, :1], x.shape[1] // block, axis=1) == 1))
        assert not bytes_of(q.scales)[at != 0].any() and bytes_of(q.scales)[at == 0].any() == (used > 0)


@pytest.mark.parametrize("count", [1, 3, 64, 65, 256, 288])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_any_number_of_groups(name, count):
    spec = SPECS[name]
    for axis in (-1, -2):
        x, sizes = packed(count, unit_of(spec, axis), columns=32)
        check_against_loop(x, sizes, grouped_quantize(x, sizes, spec, axis=axis), spec, axis)
    given = grouped_amax(x, sizes)
    for group in range(count):
        start = sizes[:group].sum()
        assert given[group] == amax(x[start : start + sizes[group]])
    assert (given > 0).sum() == (sizes > 0).sum()


@pytest.mark.parametrize("name", SPECS)
def test_rowwise_groups_of_any_size_are_dense_operands(name):
    x, sizes = packed(9, 7, columns=96, dtype="float32")
    check_against_loop(x, sizes, grouped_quantize(x, sizes, SPECS[name]), SPECS[name], -1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", COLUMN_SPECS)
def test_columnwise_groups_are_dense_operands(name, dtype):
    spec = COLUMN_SPECS[name]
    x, sizes = packed(5, unit_of(spec, -2), dtype=dtype)
    check_against_loop(x, sizes, grouped_quantize(x, sizes, spec, axis=-2), spec, -2)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "rht"])
def test_a_group_does_not_restart_the_random_stream(name, axis):
    spec = COLUMN_SPECS[name]
    if axis == -1:
        spec = NVFP4
    x, sizes = packed(5, 32)
    check_against_loop(x, sizes, grouped_quantize(x, sizes, spec, axis=axis, key=KEY), spec, axis, key=KEY)
    # The packed row counts: the same group elsewhere has other random numbers.
    moved = np.concatenate([x[:64], x])
    again = grouped_quantize(moved, [64, *sizes], spec, axis=axis, key=KEY).codes
    codes = again[64:] if axis == -1 else again[:, 32:]
    first = grouped_quantize(x, sizes, spec, axis=axis, key=KEY).codes
    assert (codes != first).any()
    shifted = grouped_quantize(x, sizes, spec, axis=axis, key=KEY, origin=(0, 64, 0)).codes
    assert_same_bytes(shifted, codes, "with an origin")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("col_name", ["nvfp4", "rht", "rht_swizzled"])
def test_dual_is_both(col_name, key):
    col_spec = COLUMN_SPECS[col_name]
    x, sizes = packed(5, unit_of(col_spec, -2))
    row, col = grouped_quantize_dual(x, sizes, SWIZZLED, col_spec=col_spec, key=key)
    for q, expected in (
        (row, grouped_quantize(x, sizes, SWIZZLED, key=key)),
        (col, grouped_quantize(x, sizes, col_spec, axis=-2, key=key)),
    ):
        for name in ("codes", "scales", "amax", "group_sizes"):
            assert_same_bytes(getattr(q, name), getattr(expected, name), name)
        assert q.spec == expected.spec and q.spec.scope == "group" and q.axis == expected.axis
    amaxes = grouped_amax(x, sizes, rht=col_spec.rht, dual=True)
    assert_same_bytes(amaxes[0], row.amax, "row amax")
    assert_same_bytes(amaxes[1], col.amax, "column amax")
    given = grouped_quantize_dual(x, sizes, col_spec=col_spec, amax=row.amax, col_amax=2 * col.amax)
    assert_same_bytes(given[0].amax, row.amax, "given")
    assert_same_bytes(given[1].amax, 2 * col.amax, "given")


@pytest.mark.parametrize("name", ["nvfp4", "rht"])
def test_nan_stays_in_its_group(name):
    spec = COLUMN_SPECS[name]
    x, sizes = packed(6, 32)
    sizes[:] = 32
    x = x[:1].repeat(192, 0) + make("normal", (192, 48), "float32").astype(ml_dtypes.bfloat16)
    clean = grouped_quantize_dual(x, sizes, col_spec=spec)
    x[70, 7] = np.nan
    poisoned = grouped_quantize_dual(x, sizes, col_spec=spec)
    other = np.arange(192) // 32 != 2
    for q, before in zip(poisoned, clean, strict=True):
        assert np.flatnonzero(np.isnan(q.amax)).tolist() == [2]
        scales, codes = (a if q.axis == -1 else a.T for a in (bytes_of(q.scales), q.codes))
        scales_before, codes_before = (a if q.axis == -1 else a.T for a in (bytes_of(before.scales), before.codes))
        kept, kept_codes = (other, other) if q.axis == -1 else (other[::16], other[::2])
        assert (scales[~kept] == 0x7F).all() and (codes[~kept_codes] == 0x77).all()
        assert_same_bytes(scales[kept], scales_before[kept], "scales")
        assert_same_bytes(codes[kept_codes], codes_before[kept_codes], "codes")


@pytest.mark.parametrize("sizes", [[128, 0, 0, 128], [0, 0, 0, 0], [0, 256, 0, 0], [0, 0, 0, 256], []], ids=str)
def test_empty_groups(sizes):
    x = make("normal", (256, 32), "bfloat16")
    for spec, axis in ((NVFP4, -1), (QuantSpec(rht=RHT()), -2), (SWIZZLED, -2), (MXFP8, -2)):
        q = grouped_quantize(x, np.array(sizes, np.int32), spec, axis=axis)
        check_against_loop(x, np.array(sizes, int), q, spec, axis)
    assert grouped_amax(x, sizes).shape == (len(sizes),)
    assert not grouped_amax(x, sizes)[np.array(sizes, int) == 0].any()


def test_mxfp8_capacity_is_quantized_but_its_scales_are_zero():
    x = make("normal", (96, 64), "bfloat16")
    for axis in (-1, -2):
        q, dense = grouped_quantize(x, [32], MXFP8, axis=axis), quantize(x, MXFP8, axis=axis)
        assert_same_bytes(q.codes, dense.codes, "codes")
        scales, expected = (bytes_of(a) if axis == -1 else bytes_of(a).T for a in (q.scales, dense.scales))
        used = 32 if axis == -1 else 1
        assert_same_bytes(scales[:used], expected[:used], "scales")
        assert not scales[used:].any() and expected[used:].all() and q.amax is None


@pytest.mark.parametrize("sizes", [[16, 0, 32], np.int64([16, 0, 32]), np.uint32([16, 0, 32]), np.int8([16, 0, 32])])
def test_any_integer_dtype(sizes):
    x = make("normal", (64, 32), "bfloat16")
    assert_same_bytes(grouped_amax(x, sizes), grouped_amax(x, np.int32([16, 0, 32])), "amax")
    assert grouped_quantize(x, sizes, axis=-2).codes.shape == (32, 32)


def test_leading_axes_are_batch():
    x = make("normal", (2, 64, 32), "bfloat16")
    sizes = np.array([[16, 48], [32, 16]])
    for spec, axis in ((NVFP4, -1), (QuantSpec(rht=RHT()), -2)):
        whole = grouped_quantize(x, sizes, spec, axis=axis, key=KEY)
        for i in range(2):
            one = grouped_quantize(x[i], sizes[i], spec, axis=axis, key=KEY, origin=(i, 0, 0))
            for name in ("codes", "scales", "amax"):
                assert_same_bytes(getattr(whole, name)[i], getattr(one, name), name)


@pytest.mark.parametrize("name", COLUMN_SPECS)
@pytest.mark.parametrize("axis", [-1, -2])
def test_dequantize(name, axis):
    spec = COLUMN_SPECS[name]
    if axis == -1 and spec.rht is not None:
        return
    x, sizes = packed(5, 128, columns=96)
    y = dequantize(grouped_quantize(x, sizes, spec, axis=axis), "float32")
    assert y.shape == x.shape
    for start, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        dense = dequantize(quantize(x[start : start + size], spec, axis=axis), "float32")
        assert_same_bytes(y[start : start + size], dense, f"group at {start}")
    if spec.facts.has_amax:
        assert not bytes_of(y[sizes.sum() :]).any()


# Wrong sizes.


@pytest.mark.parametrize(
    "sizes, spec, message",
    [
        ([16, 8, 40], NVFP4, "group 1 starts at row 16 and has 8 rows, which must be multiples of 16"),
        ([16, 48], MXFP8, "group 0 starts at row 0 and has 16 rows, which must be multiples of 32"),
        ([64, 64], SWIZZLED, "group 0 starts at row 0 and has 64 rows, which must be multiples of 128"),
        ([16, -16], NVFP4, r"group_sizes\[1\] is -16: a size is never negative"),
        ([128, 144], NVFP4, "add up to 272, more than the 256 rows of x"),
    ],
)
def test_wrong_sizes_are_refused(sizes, spec, message):
    x = make("normal", (256, 32), "bfloat16")
    with pytest.raises(ValueError, match=message):
        grouped_quantize(x, sizes, spec, axis=-2)
    with pytest.raises(ValueError, match=message):
        grouped_quantize_dual(x, sizes, spec)


def test_other_wrong_operands_are_refused():
    x = make("normal", (64, 32), "bfloat16")
    with pytest.raises(ValueError, match="group 0 starts at row 0 and has 8 rows"):
        grouped_amax(x, [8, 8], rht=RHT())
    assert grouped_amax(x, [8, 8]).shape == (2,)
    with pytest.raises(TypeError, match="group_sizes must be integers, got float64"):
        grouped_amax(x, [8.0])
    with pytest.raises(ValueError, match=r"group_sizes must be \(\.\.\., E\) beside x \(64, 32\), got shape \(1, 2\)"):
        grouped_amax(x, [[8, 8]])
    with pytest.raises(ValueError, match="groups have 1 x block blocks"):
        grouped_quantize(x, [64], NVFP4_2D)
    with pytest.raises(ValueError, match="groups have 1 x block blocks"):
        grouped_quantize(x, [64], QuantSpec(scope="row"))
    with pytest.raises(ValueError, match="tail must be one of"):
        grouped_quantize(x, [64], tail="keep")
    with pytest.raises(ValueError, match="a multiple of 128 rows, got 64"):
        grouped_quantize(x, [0], SWIZZLED, axis=-2)
    with pytest.raises(ValueError, match=r"amax must have shape \(2,\) or be one for all, got \(3,\)"):
        grouped_quantize(x, [16, 48], amax=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="never rounded stochastically"):
        grouped_quantize(x, [64], MXFP8, key=KEY)


POISONED = {
    # sizes -> groups that violate, blocks of rows that are poisoned (unit: the multiple)
    "none": ([2, 0, 3], [], []),
    "one": ([2, 1.5, 0.5, 3], [1, 2], [2, 3]),
    "first": ([0.5, 1.5, 2], [0, 1], [0, 1]),
    "last, rounded up into capacity": ([1, 2.5], [1], [1, 2, 3]),
    "an empty group inside": ([1, 0.5, 0, 0.5, 1], [1, 2, 3], [1]),
    "two runs": ([0.5, 0.5, 2, 1.25, 0.75, 1], [0, 1, 3, 4], [0, 3, 4]),
    "negative": ([1, -1, 2], [0, 1, 2], range(8)),
    "too many": ([4, 5], [0, 1], range(8)),
}


@pytest.mark.parametrize("case", POISONED)
@pytest.mark.parametrize("name", COLUMN_SPECS)
def test_wrong_sizes_poison_their_own_results(name, case):
    spec = COLUMN_SPECS[name]
    units, bad_groups, bad_blocks = POISONED[case]
    unit = unit_of(spec, -2)
    sizes = np.array([int(size * unit) for size in units])
    x = make("normal", (8 * unit, 48), "bfloat16")
    q, is_specified = poisoned_quantize(x, sizes, spec, axis=-2, key=KEY if "rht" in name else None)

    # What is left: the same groups with the poisoned blocks of rows as one group each.
    is_bad = np.isin(np.arange(8), bad_blocks)
    is_impossible = len(is_bad) == is_bad.sum()
    ends = np.zeros(1, int) if is_impossible else -(-np.cumsum(sizes) // unit) * unit
    clean = grouped_quantize(x, np.diff(ends, prepend=0), spec, axis=-2, key=KEY if "rht" in name else None)
    blocks, per_byte = unit // spec.facts.block, spec.facts.codes_per_byte
    bad_scales, bad_codes = is_bad.repeat(blocks), is_bad.repeat(unit // per_byte)
    assert_same_bytes(is_specified, np.broadcast_to(~bad_codes, q.codes.shape), "specified codes")
    assert_same_bytes(q.codes[is_specified], clean.codes[is_specified], "codes")
    nan_byte = 0xFF if spec.facts.scale_dtype == "float8_e8m0fnu" else 0x7F
    if spec.scale_layout == "linear":
        mask = np.broadcast_to(bad_scales, q.scales.shape)
    else:
        mask = bad_scales.repeat(128).reshape(q.scales.shape)
    assert_same_bytes(bytes_of(q.scales), np.where(mask, np.uint8(nan_byte), bytes_of(clean.scales)), "scales")
    if spec.facts.has_amax and spec.rht is not None and unit == 16:
        assert np.flatnonzero(np.isnan(q.amax)).tolist() == bad_groups
    if not bad_groups:
        assert is_specified.all()


def test_poisoned_amax_and_rows():
    x = make("normal", (128, 32), "bfloat16")
    sizes = [16, 24, 8, 32]
    row, col = poisoned_amax(x, sizes, rht=RHT(), dual=True)
    assert_same_bytes(row, grouped_amax(x, sizes), "row amax")
    assert np.flatnonzero(np.isnan(col)).tolist() == [1, 2]
    valid = grouped_amax(x, [16, 32, 32], rht=RHT())
    assert_same_bytes(col[[0, 3]], valid[[0, 2]], "valid groups")
    assert not np.isnan(poisoned_amax(x, sizes)).any()
    rows, is_specified = poisoned_quantize(x, sizes)
    assert is_specified.all()
    assert_same_bytes(rows.codes, grouped_quantize(x, sizes).codes, "rows do not mind")
    for impossible in ([-1, 2], [100, 29]):
        assert np.isnan(poisoned_amax(x, impossible, rht=RHT(), dual=True)).all()
        for spec in (NVFP4, SWIZZLED):
            rows, is_specified = poisoned_quantize(x, impossible, spec)
            assert (bytes_of(rows.scales) == 0x7F).all() and not is_specified.any() and np.isnan(rows.amax).all()


# Padding.


@pytest.mark.parametrize("multiple", [1, 16, 128])
@pytest.mark.parametrize("sizes", [[1, 127, 129, 15, 0, 240], [0], [], [512]], ids=str)
def test_padding_and_back(sizes, multiple):
    x = make("normal", (512, 32), "bfloat16")
    padded, new_sizes = pad_groups(x, sizes, multiple)
    assert new_sizes.tolist() == [-(-size // multiple) * multiple for size in sizes] and new_sizes.dtype == np.int32
    assert len(padded) % multiple == 0 and len(padded) >= new_sizes.sum()
    start = new_start = 0
    for size, new_size in zip(sizes, new_sizes, strict=True):
        assert_same_bytes(padded[new_start : new_start + size], x[start : start + size], "rows")
        assert not padded[new_start + size : new_start + new_size].any()
        start, new_start = start + size, new_start + int(new_size)
    assert not padded[new_start:].any()
    back = unpad_groups(padded, sizes, 512, multiple)
    assert_same_bytes(back[: sum(sizes)], x[: sum(sizes)], "back")
    assert not back[sum(sizes) :].any()
    if multiple == 128:
        grouped_quantize(padded, new_sizes, SWIZZLED, axis=-2)


def test_padding_refuses():
    x = make("normal", (32, 16), "bfloat16")
    with pytest.raises(ValueError, match="multiple must be at least 1"):
        pad_groups(x, [16], 0)
    with pytest.raises(ValueError, match="more than the 32 rows"):
        pad_groups(x, [33])
    with pytest.raises(ValueError, match="never negative"):
        unpad_groups(x, [-1], 32)


def test_formats_are_covered():
    assert {spec.format for spec in SPECS.values()} | {"mxfp8_e5m2"} == set(FORMATS)
