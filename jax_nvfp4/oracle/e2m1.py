"""E2M1 elements: sign, two exponent bits, one mantissa bit; two codes per byte (docs/numerics.md section 1)."""

from __future__ import annotations

import numpy as np

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""The value of codes 0..7; bit 3 of a code is the sign."""

MIDPOINTS = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / np.float32(2)
SIGN = np.uint8(8)
NAN_CODE = np.uint8(7)


def with_sign(magnitude_code: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Codes with the sign of `x` (-0 included), and code 7 where `x` is NaN."""
    signed = magnitude_code.astype(np.uint8) | np.where(np.signbit(x), SIGN, np.uint8(0))
    return np.where(np.isnan(x), NAN_CODE, signed)


def encode(x: np.ndarray) -> np.ndarray:
    """Rounds float32 values to the nearest code, ties to the even code, saturating at +-6.

    Args:
        x: float32, any shape.

    Returns:
        uint8 codes 0..15, one per byte, the shape of `x`. NaN gives code 7 whatever its sign.
    """
    magnitude = np.abs(x)
    below = np.searchsorted(MIDPOINTS, magnitude, side="left")
    at_or_below = np.searchsorted(MIDPOINTS, magnitude, side="right")
    # The two counts differ only on a midpoint, where they are the two neighbouring codes.
    return with_sign(np.where(below % 2 == 0, below, at_or_below), x)


def decode(codes: np.ndarray) -> np.ndarray:
    """The float32 values of codes 0..15; code 8 is -0."""
    magnitude = MAGNITUDES[codes & 7]
    return np.where(codes & SIGN, -magnitude, magnitude)


def pack(codes: np.ndarray) -> np.ndarray:
    """Packs (..., 2n) codes into (..., n) bytes: element 2i in the low nibble of byte i, 2i+1 in the high."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack(packed: np.ndarray) -> np.ndarray:
    """Unpacks (..., n) bytes into (..., 2n) codes, the inverse of `pack`."""
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], -1)
    return codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
