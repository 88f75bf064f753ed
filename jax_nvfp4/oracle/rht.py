"""The 16-point random Hadamard transform of columnwise operands (docs/numerics.md section 3)."""

from __future__ import annotations

import numpy as np

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.spec import RHT

POINTS = NVFP4_FORMAT.block
QUARTER = np.float32(0.25)
"""1/sqrt(16), which makes the transform orthogonal."""


def signed_quarters(rht: RHT) -> np.ndarray:
    """What element i of a block is multiplied by first: float32 (16,), -0.25 where bit i of the mask is set."""
    negated = rht.sign_mask >> np.arange(POINTS) & 1
    return np.where(negated, -QUARTER, QUARTER)


def butterfly(v: np.ndarray, stride: int) -> np.ndarray:
    """One stage: pairs (a, b) of elements `stride` apart, the lower index first, become (a + b, a - b).

    Args:
        v: float32 (..., 16).
        stride: 1, 2, 4 or 8.
    """
    pairs = v.reshape(*v.shape[:-1], POINTS // (2 * stride), 2, stride)
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    return np.stack([a + b, a - b], -2).reshape(v.shape)


@np.errstate(all="ignore")
def transform(x: np.ndarray, rht: RHT) -> np.ndarray:
    """The transform of every 16 consecutive rows of x, not rounded.

    Args:
        x: float32 (..., M, K), M a multiple of 16.
        rht: the signs.

    Returns:
        float32 (..., K, M): laid out along the transformed axis.
    """
    v = np.swapaxes(x, -1, -2)
    blocks = v.reshape(*v.shape[:-1], v.shape[-1] // POINTS, POINTS) * signed_quarters(rht)
    for stride in (1, 2, 4, 8):
        blocks = butterfly(blocks, stride)
    return blocks.reshape(v.shape)


@np.errstate(all="ignore")
def rounded(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Float32 values rounded once to `dtype`, the dtype of x, and widened again."""
    return y.astype(dtype).astype(np.float32)
