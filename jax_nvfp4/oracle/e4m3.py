"""E4M3 (fn) block scales: four exponent bits, three mantissa bits, no Inf (docs/numerics.md section 1)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from jax_nvfp4.formats import E4M3_MAX

DTYPE = np.dtype(ml_dtypes.float8_e4m3fn)
NAN_BYTE = np.uint8(0x7F)


@np.errstate(invalid="ignore")
def encode(x: np.ndarray) -> np.ndarray:
    """Rounds float32 values to float8_e4m3fn, ties to even, saturating at +-448; every NaN becomes byte 0x7F."""
    # The cast alone turns values above 464 into NaN, and keeps the sign of a NaN.
    limit = np.float32(E4M3_MAX)
    saturated = np.asarray(np.clip(x, -limit, limit)).astype(DTYPE)
    return np.where(np.isnan(x), NAN_BYTE, saturated.view(np.uint8)).view(DTYPE)


def decode(scales: np.ndarray) -> np.ndarray:
    """The float32 values of float8_e4m3fn scales, exact."""
    return scales.astype(np.float32)
