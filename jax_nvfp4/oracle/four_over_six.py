"""Four-over-six: of two block scales the one with the smaller error (docs/numerics.md section 5)."""

from __future__ import annotations

import numpy as np

from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX, NVFP4_FORMAT
from jax_nvfp4.oracle import e2m1
from jax_nvfp4.spec import FourOverSix

BLOCK = NVFP4_FORMAT.block
SIX = np.float32(6)
SIX_OVER_FOUR = np.float32(1.5)


def block_terms(b: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Step 5.1: p for a block maximum that becomes 6, and for one that becomes 4; the amax is divided first."""
    base = b / SIX * s
    limit = np.float32(E4M3_MAX)
    return np.minimum(base, limit), np.minimum(base * SIX_OVER_FOUR, limit)


def differences(
    v: np.ndarray, codes: np.ndarray, unit: np.ndarray, s: np.ndarray, g: np.ndarray, choice: FourOverSix
) -> np.ndarray:
    """Step 5.3: what quantizing changes in each element.

    Args:
        v: float32 (..., R, C).
        codes: uint8 (..., R, C), one a byte.
        unit: float32 (..., R, C), the block scale of each element.
        s, g: S and G, broadcast against the elements.
        choice: the arithmetic, and Emax.

    Returns:
        float32 (..., R, C), in units of x for "exact" and of x * S for "fp16".
    """
    product = e2m1.decode(codes) * unit
    if choice.arithmetic == "fp16":
        return product - v * s
    return product * g / np.float32(E2M1_MAX * choice.emax) - v


def sequential_sum(terms: np.ndarray) -> np.ndarray:
    """((0 + t0) + t1) + ... over the last axis."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def tree_sum(terms: np.ndarray) -> np.ndarray:
    """The sum over the last axis, 16 long, in the order of a shuffle-down with offsets 8, 4, 2, 1."""
    for offset in (8, 4, 2, 1):
        terms = terms[..., :offset] + terms[..., offset : 2 * offset]
    return terms[..., 0]


def strip_errors(difference: np.ndarray, choice: FourOverSix) -> np.ndarray:
    """Step 5.4: the error of every 16 consecutive elements, (..., R, C) -> (..., R, C/16)."""
    strips = difference.reshape(*difference.shape[:-1], difference.shape[-1] // BLOCK, BLOCK)
    if choice.error == "abs_max":
        return np.abs(strips).max(-1)
    terms = np.abs(strips) if choice.error == "mae" else strips * strips
    return sequential_sum(terms) if choice.order == "sequential" else tree_sum(terms)


def tile_errors(errors: np.ndarray) -> np.ndarray:
    """Step 5.5: the errors of the 16 row strips of each tile summed by the tree, repeated in its 16 rows."""
    *batch, rows, columns = errors.shape
    strips = np.moveaxis(errors.reshape(*batch, rows // BLOCK, BLOCK, columns), -2, -1)
    return np.repeat(tree_sum(strips), BLOCK, axis=-2)


def picks_four(error_six: np.ndarray, error_four: np.ndarray) -> np.ndarray:
    """Step 5.5: only a smaller error picks 4; ties and NaN pick 6."""
    return error_four < error_six
