"""E4M3 (fn), block scales of NVFP4 and elements of MXFP8, and E5M2 (docs/numerics.md sections 1 and 8)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from jax_nvfp4.formats import E4M3_MAX, MXFP8_E5M2_FORMAT

DTYPE = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
LIMITS = {DTYPE: np.float32(E4M3_MAX), E5M2: np.float32(MXFP8_E5M2_FORMAT.code_max)}
NAN_BYTE = np.uint8(0x7F)


@np.errstate(invalid="ignore")
def encode(x: np.ndarray, dtype: np.dtype = DTYPE) -> np.ndarray:
    """Rounds float32 values to nearest, ties to even, saturating at the largest finite value.

    Args:
        x: float32, any shape.
        dtype: float8_e4m3fn or float8_e5m2.

    Returns:
        Array of `dtype` and the shape of `x`; every NaN becomes byte 0x7F.
    """
    # The cast alone turns larger values into NaN or Inf, and keeps the sign of a NaN.
    saturated = np.asarray(np.clip(x, -LIMITS[dtype], LIMITS[dtype])).astype(dtype)
    return np.where(np.isnan(x), NAN_BYTE, saturated.view(np.uint8)).view(dtype)


def decode(scales: np.ndarray) -> np.ndarray:
    """The float32 values of float8 numbers, exact."""
    return scales.astype(np.float32)
