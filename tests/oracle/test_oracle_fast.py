"""Section 7: the table of reciprocals, and what fast math changes and leaves alone."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import (
    amax,
    dequantize,
    e2m1,
    e4m3,
    fast,
    grouped_quantize,
    grouped_quantize_dual,
    intermediates,
    nvfp4,
    operations,
    quantize,
    quantize_dual,
    rht,
)
from jax_nvfp4.spec import NVFP4, NVFP4_2D, RHT, FourOverSix, QuantSpec
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make

FAST = QuantSpec(rht=RHT(), math="fast")
EXACT = replace(FAST, math="exact")
FLT_MAX = np.finfo(np.float32).max


def mantissas(step=1, exponent=127):
    return (np.arange(0, 1 << 23, step, dtype=np.int32) | np.int32(exponent << 23)).view(np.float32)


def arrays(q):
    return q.codes, q.scales, q.amax


@np.errstate(divide="ignore")
def sqnr(y, x):
    x, error = x.astype(np.float64), y.astype(np.float64) - x.astype(np.float64)
    return 10 * np.log10((x**2).sum() / (error**2).sum())


# The table.


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.full)])
def test_within_one_unit_of_the_rounded_reciprocal(step):
    d = mantissas(step)
    units = fast.reciprocal(d).view(np.int32).astype(np.int64) - (np.float32(1) / d).view(np.int32)
    assert set(np.unique(units)) == {-1, 0, 1}
    assert 0.01 < np.mean(units != 0) < 0.5
    assert fast.reciprocal(np.float32(1)) == 1
    assert (np.diff(fast.reciprocal(d)) <= 0).all()  # as the chip's interpolation is: a shuffled table is not


@pytest.mark.parametrize("exponent", [1, 2, 100, 126, 128, 200, 252])
def test_the_exponent_is_exact(exponent):
    expected = fast.reciprocal(mantissas(997)) * np.float32(2.0) ** np.float32(127 - exponent)
    assert_same_bytes(fast.reciprocal(mantissas(997, exponent)), expected, "reciprocals")


def test_special_values_of_the_reciprocal():
    d = np.array([0, 1e-45, 1.17549421e-38, 1.17549435e-38, np.inf, 2.0**126, 2.0**127], np.float32)
    expected = np.array([np.inf, np.inf, np.inf, 2.0**126, 0, 2.0**-126, 0], np.float32)
    assert_same_bytes(fast.reciprocal(d), expected, "reciprocals")
    assert np.isnan(fast.reciprocal(np.float32(np.nan))) and fast.reciprocal(np.float32(2)).shape == ()


def test_the_table_is_packed_as_documented():
    corrections = np.zeros(fast.MANTISSAS, np.int8)
    corrections[:6] = [1, 0, -1, 0, 0, 1]
    packed = fast.lzma.decompress(fast.pack(corrections))
    assert len(packed) == 1 << 21 and packed[:3] == bytes([0b01_00_01_10, 0b01_01_10_01, 0b01_01_01_01])
    assert fast.TABLE.stat().st_size < 1 << 20


def test_without_its_table_fast_math_says_so(tmp_path, monkeypatch):
    x = make("normal", (32, 32), "bfloat16")
    monkeypatch.setattr(fast, "TABLE", tmp_path / "rcp_approx.xz")
    fast.corrections.cache_clear()
    try:
        with pytest.raises(FileNotFoundError, match=r"fast math needs the table .*bench/rcp_table.py.*math='exact'"):
            quantize_dual(x, col_spec=FAST)
        quantize_dual(x, col_spec=EXACT)
        fast.TABLE.write_bytes(fast.lzma.compress(b"12"))
        with pytest.raises(ValueError, match="holds 2 bytes, expected 2097152"):
            quantize_dual(x, col_spec=FAST)
    finally:
        fast.corrections.cache_clear()


# What it changes.


def by_hand(v, g):
    """Scale bytes and codes of section 2 with the approximate reciprocal, for v laid out along its blocks."""
    with np.errstate(all="ignore"):
        s_global = nvfp4.global_scale(g)
        b = np.abs(v).reshape(*v.shape[:-1], -1, 16).max(-1)
        s = e4m3.encode(np.minimum(b * (s_global * (np.float32(1) / np.float32(6))), np.float32(448)))
        e = np.minimum(fast.reciprocal(e4m3.decode(s) * (np.float32(1) / s_global)), FLT_MAX)
        return s, e2m1.pack(e2m1.encode(v * np.repeat(e, 16, axis=-1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_directions_and_the_unrounded_columns(family, dtype):
    x = make(family, (64, 96), dtype)
    row, col = quantize_dual(x, col_spec=FAST)
    wide = x.astype(np.float32)
    row_amax, col_amax = amax(x, rht=RHT(), dual=True)  # of the rounded transform
    assert_same_bytes(row.amax, row_amax, "row amax")
    assert_same_bytes(col.amax, col_amax, "column amax")
    for q, v in ((row, wide), (col, rht.transform(wide, RHT()))):
        scales, codes = by_hand(v, q.amax)
        assert_same_bytes(q.scales, scales, "scales")
        assert_same_bytes(q.codes, codes, "codes")
    steps = intermediates(x, FAST, axis=-2)
    assert_same_bytes(steps.v, rht.transform(wide, RHT()), "unrounded")
    assert_same_bytes(e2m1.pack(steps.codes), col.codes, "codes of the intermediates")
    for part, exact in zip(arrays(row)[1:], arrays(quantize(x))[1:], strict=True):
        assert_same_bytes(part, exact, "the scales of rows do not change")


def test_the_reciprocal_decides_next_to_a_midpoint():
    """For every scale of G = 2.5 whose reciprocal is approximate, elements within 7 units of 2.5 / e."""
    g = np.float32(2.5)
    s_global = nvfp4.global_scale(g)
    scales = np.arange(8, 0x7F, dtype=np.uint8).view(e4m3.DTYPE)
    d = e4m3.decode(scales) * (np.float32(1) / s_global)
    approximate = fast.reciprocal(d) != np.float32(1) / d
    assert 10 < approximate.sum() < len(d)
    x = np.zeros((len(d), 16), np.float32)
    x[:, 0] = e4m3.decode(scales) * np.float32(6) / s_global
    near = (np.float32(2.5) * d)[:, None].view(np.int32) + np.arange(-7, 8, dtype=np.int32)
    x[:, 1:] = near.view(np.float32)
    x = np.concatenate([x, np.zeros((-len(x) % 16, 16), np.float32)])
    quick = quantize_dual(x, col_spec=FAST, amax=g)[0]
    exact = quantize_dual(x, col_spec=EXACT, amax=g)[0]
    assert_same_bytes(quick.scales, exact.scales, "scales")
    rows = np.flatnonzero((quick.codes != exact.codes).any(-1))
    assert len(rows) > 10 and approximate[rows].all()


def test_it_differs_from_exact_math_but_little():
    x = make("normal", (256, 256), "bfloat16")
    results = zip(quantize_dual(x, col_spec=FAST), quantize_dual(x, col_spec=EXACT), strict=True)
    for i, (quick, exact) in enumerate(results):
        assert sqnr(dequantize(quick, "float32"), dequantize(exact, "float32")) >= 25
        if i == 1:
            assert (quick.codes != exact.codes).any()


def test_an_unrounded_block_may_exceed_the_amax_and_is_clamped():
    """The rounded transform is smaller than the unrounded one, so p is above 448 before the clamp."""
    x = np.zeros((16, 1), ml_dtypes.bfloat16)
    x[:, 0] = [4 * 129 / 128, 4 / 512] + [0] * 14
    v = rht.transform(x.astype(np.float32), RHT(0))
    column_amax = amax(x, rht=RHT(0))
    assert np.abs(v).max() > column_amax
    spec = QuantSpec(rht=RHT(0), math="fast")
    _, col = quantize_dual(x.repeat(16, 1), col_spec=spec)
    assert (col.scales.view(np.uint8) == 0x7E).all() and (e2m1.unpack(col.codes) == 7).all()


def test_zero_and_underflowed_blocks_use_the_largest_float():
    x = np.zeros((16, 32), np.float32)
    x[0, 0], x[:, 16:] = 1, 1e-12
    row, _ = quantize_dual(x, col_spec=FAST)
    assert row.scales.view(np.uint8)[0].tolist() == [0x7E, 0] and set(e2m1.unpack(row.codes)[0, 16:]) == {7}


def test_stochastic_rounding_goes_with_it():
    x = make("normal", (64, 64), "bfloat16")
    row, col = quantize_dual(x, col_spec=FAST, key=(1, 2))
    nearest = quantize_dual(x, col_spec=FAST)
    for q, other in zip((row, col), nearest, strict=True):
        assert_same_bytes(q.scales, other.scales, "scales")
        step = (e2m1.unpack(q.codes) & 7).astype(int) - (e2m1.unpack(other.codes) & 7)
        assert (np.abs(step) == 1).any() and np.abs(step).max() == 1


@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_grouped(layout):
    col_spec = replace(FAST, scale_layout=layout)
    x, sizes = make("normal", (512, 48), "bfloat16"), [128, 0, 256]
    row, col = grouped_quantize_dual(x, sizes, col_spec=col_spec)
    for group, (start, size) in enumerate(((0, 128), (128, 256))):
        dense_row, dense_col = quantize_dual(x[start : start + size], col_spec=col_spec)
        assert_same_bytes(row.codes[start : start + size], dense_row.codes, f"rows of {group}")
        assert_same_bytes(row.scales[start : start + size], dense_row.scales, f"row scales of {group}")
        assert_same_bytes(col.codes[:, start // 2 : (start + size) // 2], dense_col.codes, f"columns of {group}")
        if layout == "linear":
            assert_same_bytes(col.scales[:, start // 16 : (start + size) // 16], dense_col.scales, "column scales")
        else:
            region = col.scales.reshape(-1)[128 * start // 16 : 128 * (start + size) // 16]
            assert_same_bytes(region, dense_col.scales.reshape(-1), "column scales")


def test_what_is_refused():
    x = make("normal", (64, 64), "bfloat16")
    with pytest.raises(ValueError, match="fast math exists for the Hadamard transform only"):
        QuantSpec(math="fast")
    with pytest.raises(ValueError, match="math must be one of"):
        QuantSpec(rht=RHT(), math="approximate")
    with pytest.raises(ValueError, match="fast math belongs to the row and column quantize"):
        quantize(x, FAST, axis=-2)
    with pytest.raises(ValueError, match="fast math belongs to the row and column quantize"):
        grouped_quantize(x, [64], FAST, axis=-2)
    for spec in (NVFP4_2D, QuantSpec(four_over_six=FourOverSix()), QuantSpec("mxfp8")):
        with pytest.raises(ValueError, match="fast math holds for both results"):
            quantize_dual(x, spec, col_spec=FAST)
    with pytest.raises(ValueError, match="fast math holds for both results"):
        grouped_quantize_dual(x, [64], QuantSpec("mxfp8"), col_spec=FAST)
    assert operations.operand(x, NVFP4, -1).dtype == np.float32
