"""How two results are compared: every bit, or by the noise that quantization adds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def assert_same_bytes(actual: ArrayLike, expected: ArrayLike, what: str) -> None:
    """Asserts that two arrays agree in shape, dtype and every bit (so NaN equals NaN, and -0 is not 0).

    Raises:
        AssertionError: says how many elements differ, where the first one is, and both bit patterns.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    word = np.dtype(f"u{actual.dtype.itemsize}")
    a, e = (np.ascontiguousarray(v).reshape(-1).view(word) for v in (actual, expected))
    different = np.flatnonzero(a != e)
    if different.size:
        first = different[0]
        index = tuple(int(i) for i in np.unravel_index(first, actual.shape))
        digits = 2 * word.itemsize
        raise AssertionError(
            f"{what}: {different.size} of {a.size} elements differ, first at {index}: "
            f"0x{a[first]:0{digits}x} ({actual[index]}), expected 0x{e[first]:0{digits}x} ({expected[index]})"
        )


def sqnr(actual: ArrayLike, expected: ArrayLike) -> float:
    """Signal to quantization noise ratio in dB."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(10 * np.log10((expected**2).sum() / ((actual - expected) ** 2).sum()))
