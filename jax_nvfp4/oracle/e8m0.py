"""E8M0 block scales of MXFP8: byte b is 2^(b - 127), 255 is NaN (docs/numerics.md section 1)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPE = np.dtype(ml_dtypes.float8_e8m0fnu)
NAN_BYTE = np.uint8(255)
LARGEST_BYTE = 254
HALF_OF_SMALLEST = np.uint32(0x400000)
"""The mantissa of 2^-127, the smallest power there is, which is subnormal in float32."""


def fields(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponent field and mantissa of float32 values."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits >> np.uint32(23) & np.uint32(0xFF)).reshape(np.shape(x)), (bits & np.uint32(0x7FFFFF)).reshape(
        np.shape(x)
    )


def encode_up(x: np.ndarray) -> np.ndarray:
    """RCEIL: the smallest power that is at least x.

    Args:
        x: float32 >= 0, Inf or NaN, any shape.

    Returns:
        float8_e8m0fnu of the same shape: byte 0 up to 2^-127, byte 255 above 2^127 and for Inf and NaN.
    """
    exponent, mantissa = fields(x)
    rounds_up = np.where(exponent == 0, mantissa > HALF_OF_SMALLEST, mantissa != 0)
    byte = np.minimum(exponent + rounds_up, NAN_BYTE)
    return byte.astype(np.uint8).view(DTYPE)


def encode_down(x: np.ndarray, largest_exponent: int) -> np.ndarray:
    """FLOOR: the power below x, divided by 2^largest_exponent.

    Args:
        x: float32 >= 0, Inf or NaN, any shape.
        largest_exponent: that of the largest element.

    Returns:
        float8_e8m0fnu of the same shape: byte 0 where there is no smaller power, byte 255 for Inf and NaN.
    """
    exponent, _ = fields(x)
    byte = np.maximum(exponent.astype(np.int32) - largest_exponent, 0)
    return np.where(exponent == 0xFF, NAN_BYTE, byte.astype(np.uint8)).view(DTYPE)


def decode(scales: np.ndarray) -> np.ndarray:
    """The float32 values of scales, exact: byte 0 is the subnormal 2^-127, byte 255 NaN."""
    byte = scales.view(np.uint8)
    bits = np.where(byte == 0, HALF_OF_SMALLEST, byte.astype(np.uint32) << np.uint32(23)).astype(np.uint32)
    return np.where(byte == NAN_BYTE, np.float32("nan"), bits.view(np.float32))


def inverse(scales: np.ndarray) -> np.ndarray:
    """What elements are multiplied by: the value of byte 254 - b, so 2^127 for b = 0; NaN for b = 255."""
    byte = scales.view(np.uint8)
    return decode(np.where(byte == NAN_BYTE, byte, LARGEST_BYTE - byte).astype(np.uint8).view(DTYPE))
