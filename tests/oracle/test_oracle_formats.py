"""Section 1: E2M1 and E4M3 against their definitions, on every bfloat16 and float16 value."""

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import e2m1, e4m3
from jax_nvfp4.testing import E2M1_MIDPOINTS, E4M3_POSITIVE, assert_same_bytes

E2M1_VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def e4m3_magnitude(byte):
    """The definition: bias 7, three mantissa bits, exponent field 0 subnormal."""
    exponent, mantissa = byte >> 3, byte & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3_VALUES = [e4m3_magnitude(byte) for byte in range(0x7F)]


def nearest_even(x, values):
    """Index of the value nearest to each |x|, ties to the even index, saturating; float64 is exact here."""
    distance = np.abs(np.minimum(np.abs(x.astype(np.float64)), values[-1])[:, None] - np.array(values, np.float64))
    nearest = distance == distance.min(-1, keepdims=True)
    first, last = nearest.argmax(-1), len(values) - 1 - nearest[:, ::-1].argmax(-1)
    return np.where(first % 2 == 0, first, last).astype(np.uint8)


def every(dtype):
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(dtype).astype(np.float32)


def neighbours(points):
    """float32 values at, just below and just above each point, of both signs."""
    points = np.asarray(points, np.float32)
    x = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    return np.concatenate([x, -x])


SETS = {
    "bfloat16": every(ml_dtypes.bfloat16),
    "float16": every(np.float16),
    "e2m1_boundaries": neighbours([*E2M1_MIDPOINTS, *E2M1_VALUES, 1e-45, 3e38]),
    "e4m3_boundaries": neighbours([*E4M3_POSITIVE, *(E4M3_POSITIVE[1:] + E4M3_POSITIVE[:-1]) / 2, 2**-10, 464, 480]),
}


@pytest.mark.parametrize("name", SETS)
def test_e2m1_is_the_nearest_value(name):
    x = SETS[name]
    finite = x[~np.isnan(x)]
    expected = nearest_even(finite, E2M1_VALUES) | np.where(np.signbit(finite), 8, 0).astype(np.uint8)
    assert_same_bytes(e2m1.encode(finite), expected, name)
    assert (e2m1.encode(x[np.isnan(x)]) == 7).all()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "e2m1_boundaries"])
def test_e2m1_agrees_with_ml_dtypes(name):
    x = SETS[name]
    x = x[~np.isnan(x)]
    assert_same_bytes(e2m1.encode(x), x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8), name)


def test_e2m1_ties_and_special_values():
    x = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6.1, np.inf, -np.inf, -0.0, -1e-9, np.nan, -np.nan], np.float32)
    assert e2m1.encode(x).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 7, 15, 8, 8, 7, 7]


def test_e2m1_decode():
    codes = np.arange(16, dtype=np.uint8)
    expected = np.array(E2M1_VALUES + [-v for v in E2M1_VALUES], np.float32)
    expected[8] = -0.0
    assert_same_bytes(e2m1.decode(codes), expected, "decode")
    assert_same_bytes(e2m1.encode(e2m1.decode(codes)), codes, "encode of decode")


def test_packing_puts_the_even_element_low():
    codes = np.arange(32, dtype=np.uint8).reshape(2, 16) % 16
    assert e2m1.pack(codes).tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]] * 2
    assert_same_bytes(e2m1.unpack(e2m1.pack(codes)), codes, "unpack of pack")


@pytest.mark.parametrize("name", ["bfloat16", "float16", "e4m3_boundaries"])
def test_e4m3_is_the_nearest_value(name):
    x = SETS[name]
    finite = x[~np.isnan(x)]
    expected = nearest_even(finite, E4M3_VALUES) | np.where(np.signbit(finite), 0x80, 0).astype(np.uint8)
    assert_same_bytes(e4m3.encode(finite).view(np.uint8), expected, name)
    assert (e4m3.encode(x[np.isnan(x)]).view(np.uint8) == 0x7F).all()


def test_e4m3_agrees_with_ml_dtypes_up_to_its_maximum():
    x = SETS["bfloat16"]
    x = x[np.abs(x) <= 448]
    assert x.size > 30000
    assert_same_bytes(e4m3.encode(x), x.astype(ml_dtypes.float8_e4m3fn), "bfloat16 up to 448")


def test_e4m3_saturates():
    x = np.array([448, 449, 464, 464.1, 480, 1e4, np.inf, -464.1, -np.inf, np.nan, -np.nan], np.float32)
    assert e4m3.encode(x).view(np.uint8).tolist() == [0x7E] * 7 + [0xFE] * 2 + [0x7F] * 2


def test_e4m3_decode():
    decoded = e4m3.decode(np.arange(256, dtype=np.uint8).view(e4m3.DTYPE))
    magnitudes = np.array([*E4M3_VALUES, np.nan], np.float32)
    np.testing.assert_array_equal(decoded, np.concatenate([magnitudes, -magnitudes]))
    assert np.signbit(decoded[0x80]) and not np.signbit(decoded[0])
