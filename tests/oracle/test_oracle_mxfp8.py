"""Sections 1 and 8: E8M0 scales, cut-offs, special blocks, both directions and both element formats."""

import math

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import decode, dequantize, e4m3, e8m0, intermediates, qdq, quantize, quantize_dual, swizzle_scales
from jax_nvfp4.spec import MXFP8, RHT, FourOverSix, QuantSpec
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make

DTYPES = ["bfloat16", "float16", "float32"]
FLOOR = QuantSpec("mxfp8", scale_rounding="floor")
E5M2 = QuantSpec("mxfp8_e5m2")
SPECS = {"rceil": MXFP8, "floor": FLOOR, "e5m2": E5M2, "e5m2_floor": QuantSpec("mxfp8_e5m2", scale_rounding="floor")}
LIMITS = {"mxfp8": (448.0, 8), "mxfp8_e5m2": (57344.0, 15)}


def f32(*bits):
    return np.array(bits, np.uint32).view(np.float32)


def raw(array):
    return np.ascontiguousarray(array).view(np.uint8)


def scale_byte(a, spec=MXFP8):
    """The scale byte of a block whose largest element is each of `a`."""
    x = np.zeros((np.size(a), 32), np.asarray(a).dtype)
    x[:, 5] = a
    return raw(quantize(x, spec).scales)[:, 0]


# E8M0.


def test_e8m0_values():
    values = e8m0.decode(np.arange(256, dtype=np.uint8).view(e8m0.DTYPE))
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)] and np.isnan(values[255])
    assert values[0].view(np.uint32) == 0x00400000


def test_the_multiplier_is_the_inverse():
    inverse = e8m0.inverse(np.arange(256, dtype=np.uint8).view(e8m0.DTYPE))
    assert inverse[:255].tolist() == [2.0 ** (127 - byte) for byte in range(255)] and np.isnan(inverse[255])
    assert inverse[254].view(np.uint32) == 0x00400000 and inverse[0] == 2.0**127


def test_rceil_is_the_smallest_power_that_is_not_smaller():
    """Every power of two of float32 and its neighbours, by exact logarithms."""
    powers = np.ldexp(1.0, np.arange(-149, 128)).astype(np.float32)
    x = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
    x = x[np.isfinite(x)]
    for value, byte in zip(x, e8m0.encode_up(x).view(np.uint8), strict=True):
        mantissa, exponent = math.frexp(value)
        power = exponent - 1 if mantissa == 0.5 else exponent
        assert byte == (0 if value == 0 else 255 if power > 127 else max(0, power + 127)), value
    assert e8m0.encode_up(f32(0x00400000, 0x00400001, 0x007FFFFF, 0x00800000)).view(np.uint8).tolist() == [0, 1, 1, 1]
    assert e8m0.encode_up(np.float32([2.0**127, 3e38, np.inf, np.nan])).view(np.uint8).tolist() == [254, 255, 255, 255]


# Cut-offs.


@pytest.mark.parametrize(
    "bits, byte",
    [
        (0, 0),
        (1, 0),
        (0x04600000, 0),
        (0x04600001, 0),
        (0x04600002, 1),
        (0x04610000, 1),
        (0x04E00000, 1),
        (0x04E00001, 2),
    ],
)
def test_the_cut_off_above_zero(bits, byte):
    """448 * 2^-127 and its neighbours: fl(A/448) may round down to a power of two."""
    assert scale_byte(f32(bits)).tolist() == [byte]


def test_bfloat16_closed_form():
    """Every positive bfloat16, both modes, from its exponent and mantissa."""
    words = np.arange(0x7F80, dtype=np.uint16)
    exponent, mantissa = (words >> 7).astype(int), words & 0x7F
    amaxes = words.view(ml_dtypes.bfloat16)
    rceil = np.maximum(0, exponent - 8 + (mantissa > 0x60))
    assert_same_bytes(scale_byte(amaxes), rceil.astype(np.uint8), "rceil")
    assert_same_bytes(scale_byte(amaxes, FLOOR), np.maximum(0, exponent - 8).astype(np.uint8), "floor")
    assert_same_bytes(scale_byte(amaxes, SPECS["e5m2_floor"]), np.maximum(0, exponent - 15).astype(np.uint8), "e5m2")
    # 57344 is 1.75 * 2^15, as 448 is 1.75 * 2^8.
    assert_same_bytes(
        scale_byte(amaxes, E5M2), np.maximum(0, exponent - 15 + (mantissa > 0x60)).astype(np.uint8), "e5m2 rceil"
    )


def test_rceil_never_clips_and_floor_does():
    """microxcaling#4: 957 is 896 under FLOOR."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 957
    assert dequantize(quantize(x, FLOOR), "float32")[0, 0] == 896
    assert dequantize(quantize(x, MXFP8), "float32")[0, 0] == 960
    for byte in (0x7E, 0xFE):
        sign = -1 if byte > 0x7F else 1
        assert raw(quantize(sign * x, FLOOR).codes)[0, 0] == byte


# The steps.


def test_known_answer():
    words = "bf4d bf33 bf1a bf00 becd be9a be4d bdcd 0000 3dcd 3e4d 3e9a 3ecd 3f00 3f1a 3f33"
    block = np.array([int(word, 16) for word in words.split()], np.uint16).view(ml_dtypes.bfloat16)
    x = np.concatenate([block, block])[None]
    for spec in (MXFP8, FLOOR):
        q = quantize(x, spec)
        assert raw(q.scales).tolist() == [[118]]
        assert raw(q.codes).tobytes() == bytes.fromhex("fd fb fa f8 f5 f2 ed e5 00 65 6d 72 75 78 7a 7b") * 2
        assert q.codes.dtype == ml_dtypes.float8_e4m3fn and q.scales.dtype == ml_dtypes.float8_e8m0fnu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SPECS)
def test_against_the_definition(name, family, dtype):
    """Scales from exact powers, elements from the nearest representable value in float64."""
    spec = SPECS[name]
    x = make(family, (16, 96), dtype)
    steps = intermediates(x, spec)
    limit, largest_exponent = LIMITS[spec.format]
    inverse_limit = np.float32(1) / np.float32(limit)
    assert spec.format != "mxfp8" or inverse_limit.view(np.uint32) == 0x3B124925
    grid = np.unique(np.abs(np.arange(256, dtype=np.uint8).view(spec.facts.code_dtype).astype(np.float64)))
    grid = grid[np.isfinite(grid)]
    for row, block in np.ndindex(16, 3):
        values = x[row, 32 * block : 32 * block + 32].astype(np.float32)
        codes = steps.codes[row, 32 * block : 32 * block + 32]
        byte = int(steps.s.view(np.uint8)[row, block])
        a = np.abs(values).max()
        if not np.isfinite(a):
            assert byte == 255 and (raw(codes) == 0x7F).all()
            continue
        if spec.scale_rounding == "floor":
            assert byte == max(0, (a.view(np.uint32) >> 23).astype(int) - largest_exponent)
        else:
            quotient = float(np.float32(np.float64(a) * np.float64(inverse_limit)))
            mantissa, exponent = math.frexp(quotient)
            assert byte == (0 if a == 0 else max(0, exponent + 127 - (mantissa == 0.5)))
        scaled = np.abs((values.astype(np.float64) * 2.0 ** (127 - byte)).astype(np.float32)).astype(np.float64)
        result = np.abs(codes.astype(np.float64))
        assert (np.signbit(codes) == np.signbit(values)).all()
        nearest = np.abs(grid[:, None] - np.minimum(scaled, limit)).min(0)
        assert (np.abs(result - np.minimum(scaled, limit)) == nearest).all()


def test_special_blocks():
    x = np.zeros((6, 32), np.float32)
    x[0, ::2] = -0.0
    x[1, 3] = np.inf
    x[2, 4] = -np.nan
    x[3] = f32(1)[0]
    x[4] = -1e-36
    x[5] = np.finfo(np.float32).max
    q = quantize(x, MXFP8)
    assert raw(q.scales)[:, 0].tolist() == [0, 255, 255, 0, 0, 247]
    assert raw(q.codes)[0].tolist() == [0x80, 0] * 16
    assert (raw(q.codes)[1:3] == 0x7F).all()
    # 2^-149 * 2^127 = 2^-22 underflows, 1e-36 * 2^127 does not.
    assert not raw(q.codes)[3].any() and np.isfinite(q.codes[4].astype(np.float32)).all() and raw(q.codes)[4].all()
    assert (raw(q.codes)[5] == 0x78).all()


def test_subnormal_inputs_are_not_flushed():
    """flashinfer#2440: blocks of 1e-36 to 1e-40."""
    x = np.float32([1e-36, -1e-37, 1e-38, -1e-39, 1e-40] * 32).reshape(5, 32)
    y = dequantize(quantize(x, MXFP8), "float32")
    assert np.isfinite(y).all() and (np.sign(y[x > 1e-38]) == 1).all()
    tiny = np.full((1, 32), 2.0**-133, np.float32)
    assert raw(quantize(tiny, MXFP8).codes)[0, 0] == 0x08  # 2^-133 * 2^127 = 2^-6


# What the operations share.


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("family", FAMILIES)
def test_columns_are_the_rows_of_the_transpose_and_dual_is_both(family, name):
    spec = SPECS[name]
    x = make(family, (2, 64, 96), "bfloat16")
    row, column = quantize_dual(x, spec)
    transposed = quantize(np.ascontiguousarray(np.swapaxes(x, -1, -2)), spec)
    for part in ("codes", "scales"):
        assert_same_bytes(raw(getattr(row, part)), raw(getattr(quantize(x, spec), part)), part)
        assert_same_bytes(raw(getattr(column, part)), raw(getattr(transposed, part)), part)
        assert_same_bytes(raw(getattr(row, part))[1], raw(getattr(quantize(x[1], spec), part)), part)
    assert row.amax is None and row.shape == column.shape == x.shape and column.codes.shape == (2, 96, 64)
    assert_same_bytes(dequantize(column), np.swapaxes(dequantize(transposed), -1, -2), "values")


@pytest.mark.parametrize("spec", [MXFP8, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_dequantize_is_the_product(family, dtype, spec):
    x = make(family, (32, 96), dtype)
    q = quantize(x, spec)
    scale = np.where(raw(q.scales) == 255, np.nan, np.ldexp(1.0, raw(q.scales).astype(int) - 127))
    exact = q.codes.astype(np.float64) * np.repeat(scale, 32, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = exact.astype(np.float32).astype(dtype)
    for y in (dequantize(q, dtype), qdq(x, spec)):
        nan = np.isnan(expected.astype(np.float32))
        assert_same_bytes(y[~nan], expected[~nan], "values")
        assert np.isnan(y[nan].astype(np.float32)).all() and not np.signbit(y[nan]).any()
    assert_same_bytes(decode(q), dequantize(q, "bfloat16"), "decode")


def test_swizzled_scales():
    x = make("block_spread", (160, 192), "bfloat16")
    for axis in (-1, -2):
        linear = quantize(x, MXFP8, axis=axis)
        swizzled = quantize(x, QuantSpec("mxfp8", scale_layout="swizzled"), axis=axis)
        assert_same_bytes(raw(swizzled.scales), swizzle_scales(raw(linear.scales)), "scales")
        assert_same_bytes(dequantize(swizzled), dequantize(linear), "values")


def test_accuracy():
    x = make("normal", (256, 256), "float32").astype(np.float64)
    for spec, floor in ((MXFP8, 28), (E5M2, 22)):
        error = qdq(x.astype(np.float32), spec) - x
        assert 10 * np.log10((x**2).sum() / (error**2).sum()) > floor


def test_e5m2_saturates():
    x = np.float32([57344, 61439, 61440, 1e9, np.inf, -np.inf, np.nan])
    assert e4m3.encode(x, e4m3.E5M2).view(np.uint8).tolist() == [0x7B] * 5 + [0xFB, 0x7F]


def test_what_is_refused():
    x = make("normal", (64, 64), "bfloat16")
    with pytest.raises(ValueError, match="axis -1 of x must be a multiple of 32"):
        quantize(x[:, :48], MXFP8)
    with pytest.raises(ValueError, match="has no amax, got one"):
        quantize(x, MXFP8, amax=1.0)
    with pytest.raises(ValueError, match="format 'mxfp8' is never rounded stochastically"):
        quantize(x, MXFP8, key=(1, 2))
    with pytest.raises(ValueError, match=r"block of format 'mxfp8' must be \(1, 32\).*, got \(1, 16\)"):
        QuantSpec("mxfp8", (1, 16))
    with pytest.raises(ValueError, match="has no amax, so none per row"):
        QuantSpec("mxfp8", scope="row")
    for wrong in ({"rht": RHT()}, {"four_over_six": FourOverSix()}):
        with pytest.raises(ValueError, match="rht and four_over_six belong to NVFP4"):
            QuantSpec("mxfp8", **wrong)
    with pytest.raises(ValueError, match="scale_rounding belongs to E8M0 scales"):
        QuantSpec(scale_rounding="floor")
    with pytest.raises(ValueError, match="scale_rounding must be one of"):
        QuantSpec("mxfp8", scale_rounding="nearest")
    with pytest.raises(ValueError, match="format must be one of 'nvfp4', 'mxfp8', 'mxfp8_e5m2'"):
        QuantSpec("mxfp4")
