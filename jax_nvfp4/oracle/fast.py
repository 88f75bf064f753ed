"""The reciprocal of fast math, one GPU instruction, from a table measured on one (docs/numerics.md section 7)."""

from __future__ import annotations

import functools
import lzma
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_name("rcp_approx.xz")
"""Two bits for each of the 2^23 mantissas, in order, low bits first, xz-compressed: 1 + (what the GPU returns minus the
correctly rounded reciprocal, in units of the last place). `bench/rcp_table.py` measures and writes it."""

MANTISSAS = 1 << 23
ONE_BITS = np.int32(0x3F800000)


def pack(corrections: np.ndarray) -> bytes:
    """The contents of a table file, from int8 (2^23,) differences of -1, 0 or 1."""
    digits = (corrections.reshape(-1, 4) + 1).astype(np.uint8)
    packed = digits[:, 0] | digits[:, 1] << 2 | digits[:, 2] << 4 | digits[:, 3] << 6
    return lzma.compress(packed.astype(np.uint8).tobytes(), preset=9 | lzma.PRESET_EXTREME)


@functools.cache
def corrections() -> np.ndarray:
    """int8 (2^23,): for each mantissa, approximate minus correctly rounded reciprocal. Read on first use, then kept.

    Raises:
        FileNotFoundError: the package has no table.
        ValueError: the file is not a whole table.
    """
    if not TABLE.exists():
        raise FileNotFoundError(
            f"fast math needs the table {TABLE}, which is not there: write it with `python bench/rcp_table.py` on a "
            "machine with an NVIDIA GPU, or use math='exact'"
        )
    packed = np.frombuffer(lzma.decompress(TABLE.read_bytes()), np.uint8)
    if packed.size != MANTISSAS // 4:
        raise ValueError(f"{TABLE} holds {packed.size} bytes, expected {MANTISSAS // 4}: write it again")
    digits = packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    return digits.reshape(-1).astype(np.int8) - np.int8(1)


@np.errstate(all="ignore")
def reciprocal(d: np.ndarray) -> np.ndarray:
    """rcp.approx.ftz.f32 of float32 values >= 0 or NaN.

    Args:
        d: float32, any shape.

    Returns:
        float32 of the same shape: NaN for NaN, Inf for zero and subnormal numbers, 0 where the result would be
        subnormal (d above 2^126, which no block scale reaches) and for Inf.

    Raises:
        FileNotFoundError, ValueError: as `corrections`.
    """
    bits = np.atleast_1d(np.asarray(d, np.float32)).view(np.int32)
    exponent, mantissa = bits >> 23, bits & np.int32(MANTISSAS - 1)
    # The mantissa alone lies in [1, 2) and its reciprocal in (0.5, 1], far from subnormal numbers.
    rounded = np.float32(1) / (mantissa | ONE_BITS).view(np.float32)
    approximate = (rounded.view(np.int32) + corrections()[mantissa] - (exponent - np.int32(127) << 23)).view(np.float32)
    result = np.where(approximate < np.finfo(np.float32).tiny, np.float32(0), approximate)
    result = np.where(exponent == 0, np.float32("inf"), np.where(exponent == 0xFF, np.float32(0), result))
    return np.where(np.isnan(d), np.float32("nan"), result.reshape(np.shape(d)))
