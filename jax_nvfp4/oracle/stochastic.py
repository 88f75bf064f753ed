"""Stochastic rounding to E2M1, with random bytes that depend on global indices only (docs/numerics.md section 6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.oracle import e2m1
from jax_nvfp4.oracle.philox import philox4x32

BLOCK = NVFP4_FORMAT.block


def encode(x: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Rounds float32 values up with probability floor(256 * distance from the lower grid value) / 256.

    Args:
        x: float32, any shape.
        random: uint8, one random byte per element.

    Returns:
        uint8 codes 0..15, one per byte. Grid values never move; |x| >= 6 gives +-6, NaN code 7.
    """
    magnitude = np.abs(x)
    grid = e2m1.MAGNITUDES
    lower = np.clip(np.searchsorted(grid, magnitude, side="right") - 1, 0, 6)
    fraction = (magnitude - grid[lower]) / (grid[lower + 1] - grid[lower])
    # One float32 addition: it may round up to 256. From 6 on the fraction is at least 1, so every byte rounds up.
    up = np.float32(256) * fraction + random.astype(np.float32) >= np.float32(256)
    return e2m1.with_sign(lower + up, x)


def random_bytes(shape: tuple[int, ...], axis: int, key: ArrayLike, origin: ArrayLike | None = None) -> np.ndarray:
    """The random byte of every element of an operand laid out along its quantized axis.

    Args:
        shape: (..., R, C) of the operand, C along the quantized axis (for axis -2 that is the transpose of x).
        axis: -1 or -2, the axis of x that is quantized.
        key: two uint32 words, (2,) or one pair per batch element (..., 2).
        origin: uint32 (3,), the batch index, the row and the column of x, in elements, at which this operand starts;
            batch elements count row-major from there. None: 0, 0, 0.

    Returns:
        uint8 (..., R, C).
    """
    *batch, rows, columns = shape
    key = _words(key, "key", (tuple(batch), ()), 2)
    first, row_origin, column_origin = _words((0, 0, 0) if origin is None else origin, "origin", ((),), 3)
    index = np.arange(np.prod(batch, dtype=int), dtype=np.uint32).reshape(*batch, 1, 1)
    batch_word = index + first
    along, across = (column_origin, row_origin) if axis == -1 else (row_origin, column_origin)
    if along % BLOCK:
        raise ValueError(f"origin {origin!r} starts inside a block: along axis {axis} it must be a multiple of 16")

    block = np.arange(columns // BLOCK, dtype=np.uint32)
    row = np.arange(rows, dtype=np.uint32)[:, None]
    direction = np.uint32(0 if axis == -1 else 1)
    with np.errstate(over="ignore"):  # words wrap
        counter = np.broadcast_arrays(along // np.uint32(BLOCK) + block, across + row, direction, batch_word)
    words = philox4x32(np.stack(counter, -1), key[..., None, None, :])
    return words.astype("<u4").view(np.uint8).reshape(shape)


def _words(value: ArrayLike, name: str, batches: tuple[tuple[int, ...], ...], size: int) -> np.ndarray:
    """`value` as uint32 (*batch, size), for one of the `batches`."""
    words = np.asarray(value)
    if words.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold uint32 words, got {words.dtype}: pass the raw key data, not a float")
    allowed = sorted({(*batch, size) for batch in batches}, key=len)
    if words.shape not in allowed:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, allowed))}, got {words.shape}")
    return words.astype(np.uint32)
