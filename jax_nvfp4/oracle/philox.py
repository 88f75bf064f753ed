"""Philox-4x32-10, the counter-based generator of stochastic rounding (docs/numerics.md section 6)."""

from __future__ import annotations

import numpy as np

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_INCREMENTS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))


def multiply(a: np.uint64, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The high and the low 32-bit word of a product of two 32-bit words."""
    product = a * b.astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


@np.errstate(over="ignore")  # words wrap
def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Four random words for each counter.

    Args:
        counter: uint32 (..., 4).
        key: uint32 (..., 2), broadcast against the leading axes of `counter`.

    Returns:
        uint32 (..., 4).
    """
    c0, c1, c2, c3 = (counter[..., i] for i in range(4))
    k0, k1 = np.asarray(key[..., 0]), np.asarray(key[..., 1])
    for _ in range(ROUNDS):
        high0, low0 = multiply(MULTIPLIERS[0], c0)
        high1, low1 = multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + KEY_INCREMENTS[0], k1 + KEY_INCREMENTS[1]
    return np.stack([c0, c1, c2, c3], -1)
