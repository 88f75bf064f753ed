"""Data that reaches every special case of docs/numerics.md, by family, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX, NVFP4_FORMAT

BLOCK = NVFP4_FORMAT.block
Family = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

E2M1_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
E4M3_POSITIVE = np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
ORDER_SENSITIVE_AMAX = np.array([7.875, 6.5, 6, 4.375], np.float32)
"""Values of G for which the order of the operations in section 2 step 4 changes scale bytes."""


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice(np.array([-1, 1], np.float32), shape)


def _per_block(rng: np.random.Generator, shape: tuple[int, ...], choices: ArrayLike) -> np.ndarray:
    """One of `choices` for each run of 16 elements along the last axis."""
    picked = rng.choice(np.asarray(choices, np.float32), (*shape[:-1], -(-shape[-1] // BLOCK)))
    return np.repeat(picked, BLOCK, axis=-1)[..., : shape[-1]]


def _with_element(rng: np.random.Generator, x: np.ndarray, value: float) -> np.ndarray:
    """x with `value` in a random place of the first matrix."""
    if x.size:
        x[(0,) * (x.ndim - 2) + (rng.integers(x.shape[-2]), rng.integers(x.shape[-1]))] = value
    return x


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-12, 12, shape).astype(np.float32)


def block_spread(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks up to 30 binades apart, so that many underflow to a zero scale."""
    return normal(rng, shape) * _per_block(rng, shape, np.exp2(np.arange(-30, 1)))


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """+0 and -0."""
    return _signs(rng, shape) * np.float32(0)


def outlier(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), -3e4)


def ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """E2M1 midpoints times a block scale, exactly, or one bfloat16 or float32 ulp beside; G = 6*448, so S = 1."""
    scale = _per_block(rng, shape, E4M3_POSITIVE)
    scale[..., :BLOCK] = E4M3_MAX
    x = rng.choice(E2M1_MIDPOINTS, shape) * scale
    ulps = rng.choice(np.array([0, 1, -1, 1 << 16, -(1 << 16)], np.int32), shape)
    x = (x.view(np.int32) + ulps).view(np.float32) * _signs(rng, shape)
    x[..., ::BLOCK] = E2M1_MAX * scale[..., ::BLOCK]
    return x


def order_sensitive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Block amaxes next to the midpoints of E4M3, for a G that depends on the row; row 0 has the largest."""
    g = ORDER_SENSITIVE_AMAX[np.arange(shape[-2]) % len(ORDER_SENSITIVE_AMAX)][:, None]
    midpoints = (E4M3_POSITIVE[:-1] + E4M3_POSITIVE[1:]) / 2
    b = g * _per_block(rng, shape, midpoints) / np.float32(E4M3_MAX)
    x = rng.uniform(-1, 1, shape).astype(np.float32) * b
    x[..., ::BLOCK] = b[..., ::BLOCK]
    x[..., :1] = g[: x.shape[-2]]
    return x


def dtype_max(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The largest finite value of the dtype beside smaller ones."""
    scale = rng.choice(np.array([1, 0.5, 1e-3, 0], np.float32), shape)
    return _signs(rng, shape) * np.finfo(np.float32).max * scale


def tiny(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Subnormal and near-subnormal float32, G below 7.9e-36 so that S is clamped."""
    magnitude = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-149, -118, shape))
    return _signs(rng, shape) * magnitude.astype(np.float32)


def float16_subnormal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.integers(-1023, 1024, shape) * 2.0**-24).astype(np.float32)


def huge(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """G above 7.6e35, where dequantizing overflows."""
    return normal(rng, shape) * np.float32(2e37)


def nan_block(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), np.nan)


def inf_block(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), -np.inf)


def nan_everywhere(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """NaN of both signs and many payloads."""
    payload = rng.integers(1, 1 << 23, shape, np.uint32)
    return (payload | rng.choice(np.array([0x7F800000, 0xFF800000], np.uint32), shape)).view(np.float32)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        normal,
        uniform,
        block_spread,
        zeros,
        outlier,
        ties,
        order_sensitive,
        dtype_max,
        tiny,
        float16_subnormal,
        huge,
        nan_block,
        inf_block,
        nan_everywhere,
    )
}
"""Name -> function(rng, shape) that returns float32."""


@np.errstate(invalid="ignore")
def make(family: str, shape: tuple[int, ...], dtype: DTypeLike, seed: int = 0) -> np.ndarray:
    """Data of one family.

    Args:
        family: a key of `FAMILIES`.
        shape: (..., M, K).
        dtype: bfloat16, float16 or float32.
        seed: seed of the generator.

    Returns:
        Array of `shape` and `dtype`; finite values beyond the dtype's range become its largest value.
    """
    x = FAMILIES[family](np.random.default_rng(seed), shape)
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    return np.where(np.isfinite(x), np.clip(x, -limit, limit), x).astype(dtype)
