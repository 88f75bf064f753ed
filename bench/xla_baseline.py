"""What a user would write today: the operations in plain jax.numpy, compiled by XLA.

The benchmarks measure against these. They are no reference for bits: XLA contracts, reassociates and flushes, and
zero, NaN and Inf are handled only as far as ordinary training data needs.

E2M1 has no single natural spelling in jax.numpy, and which one XLA compiles better depends on the device. So the
functions that round or decode take `style`, and the benchmarks count the faster one:

* "cast": `float4_e2m1fn` casts and bitcasts;
* "arithmetic": comparisons, rounding to a step and a table of values.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4 import swizzle_scales as swizzle
from jax_nvfp4.formats import BLOCK, E2M1_MAX, E4M3_MAX

Style = Literal["cast", "arithmetic"]
STYLES: tuple[Style, ...] = ("cast", "arithmetic")

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
MIDPOINTS = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])


def amax(x) -> jax.Array:
    """(M, K) -> float32 scalar."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def quantize(
    x, amax, *, axis: int = -1, tile: bool = False, swizzled: bool = False, style: Style = "cast"
) -> tuple[jax.Array, jax.Array]:
    """(M, K) and its amax -> packed codes and block scales along `axis`, the columnwise ones transposed."""
    scaled, scales = _scaled(x if axis == -1 else x.T, amax, tile)
    return _pack(_codes(scaled, style)), swizzle(scales) if swizzled else scales


def quantize_dual(x, amax, *, swizzled: bool = False, style: Style = "cast") -> tuple[tuple, tuple]:
    """(M, K) and its amax -> codes and scales in 16x16 tiles, rowwise and columnwise."""
    scaled, scales = _scaled(x, amax, tile=True)
    codes = _codes(scaled, style)
    column_scales = jnp.repeat(scales[::BLOCK].T, BLOCK, axis=0)
    if swizzled:
        scales, column_scales = swizzle(scales), swizzle(column_scales)
    return (_pack(codes), scales), (_pack(codes.T), column_scales)


def dequantize(codes, scales, amax, dtype=jnp.bfloat16, *, style: Style = "cast") -> jax.Array:
    """Packed codes (M, K/2), linear scales and amax -> (M, K) of `dtype`."""
    if style == "cast":
        values = jax.lax.bitcast_convert_type(codes, jnp.float4_e2m1fn).astype(jnp.float32)
    else:
        values = jnp.asarray(VALUES)[jnp.stack([codes & 15, codes >> 4], -1)]
    return _rescaled(values.reshape(*scales.shape, BLOCK), scales, amax).astype(dtype)


def qdq(x, amax, *, style: Style = "cast") -> jax.Array:
    """(M, K) and its amax -> the numbers that its rowwise quantization stands for."""
    scaled, scales = _scaled(x, amax, tile=False)
    scaled = jnp.clip(scaled, -E2M1_MAX, E2M1_MAX)
    if style == "cast":
        values = scaled.astype(jnp.float4_e2m1fn).astype(jnp.float32)
    else:
        magnitude = jnp.abs(scaled)
        step = jnp.where(magnitude < 2, 0.5, jnp.where(magnitude < 4, 1.0, 2.0))
        values = jnp.round(scaled / step) * step
    return _rescaled(values, scales, amax).astype(x.dtype)


def _scaled(x, amax, tile: bool) -> tuple[jax.Array, jax.Array]:
    """x in units of the E2M1 grid, float32 (M, K/16, 16), and its block scales (M, K/16)."""
    blocks = x.astype(jnp.float32).reshape(x.shape[0], -1, BLOCK)
    global_scale = jnp.where(amax > 0, E2M1_MAX * E4M3_MAX / amax, 1)
    block_amax = jnp.max(jnp.abs(blocks), axis=-1)
    if tile:
        tiles = jnp.max(block_amax.reshape(-1, BLOCK, block_amax.shape[1]), axis=1)
        block_amax = jnp.repeat(tiles, BLOCK, axis=0)
    scales = jnp.minimum(block_amax * (global_scale / E2M1_MAX), E4M3_MAX).astype(jnp.float8_e4m3fn)
    wide = scales.astype(jnp.float32)
    return blocks * jnp.where(wide > 0, global_scale / wide, 0)[..., None], scales


def _codes(scaled, style: Style) -> jax.Array:
    """E2M1 elements (M, K), as float4_e2m1fn or as codes, one a byte."""
    if style == "cast":
        elements = jnp.clip(scaled, -E2M1_MAX, E2M1_MAX).astype(jnp.float4_e2m1fn)
    else:
        magnitude = jnp.abs(scaled)
        elements = jnp.signbit(scaled).astype(jnp.uint8) << 3
        for lower, midpoint in enumerate(MIDPOINTS):
            elements += (magnitude >= midpoint if lower % 2 else magnitude > midpoint).astype(jnp.uint8)
    return elements.reshape(elements.shape[0], -1)


def _pack(elements) -> jax.Array:
    """(M, K) elements -> (M, K/2) bytes."""
    if elements.dtype == jnp.uint8:
        return elements[:, 0::2] | elements[:, 1::2] << 4
    return jax.lax.bitcast_convert_type(elements.reshape(elements.shape[0], -1, 2), jnp.uint8)


def _rescaled(values, scales, amax) -> jax.Array:
    """(M, K/16, 16) grid values -> (M, K) numbers."""
    factor = scales.astype(jnp.float32) * (amax / (E2M1_MAX * E4M3_MAX))
    return (values * factor[..., None]).reshape(values.shape[0], -1)
