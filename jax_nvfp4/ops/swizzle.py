"""Block scales between the linear layout and the 128x4 tiles of block-scaled matrix units (section 9).

A permutation of bytes, which XLA does exactly and fast, so these two need no custom call: they differentiate,
batch and shard as any reshape does. `quantize` writes the swizzled layout directly.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from jax_nvfp4.formats import SWIZZLE_COLUMNS, SWIZZLE_LANES, SWIZZLE_ROWS, swizzled_shape
from jax_nvfp4.ops import arguments
from jax_nvfp4.tensor import brief


def swizzle_scales(scales) -> jax.Array:
    """Linear to swizzled block scales.

    Args:
        scales: (..., R, C), any dtype of one byte.

    Returns:
        (..., R to a multiple of 128, C to a multiple of 4), the bytes in tile order, padding zero.

    Raises:
        TypeError: elements are not one byte.
        ValueError: rank below 2.
    """
    return _swizzle(_one_byte(scales))


@jax.jit
def _swizzle(scales) -> jax.Array:
    *batch, rows, columns = scales.shape
    padded = swizzled_shape((rows, columns))
    data = jax.lax.bitcast_convert_type(scales, jnp.uint8)
    data = jnp.pad(data, [(0, 0)] * len(batch) + [(0, padded[0] - rows), (0, padded[1] - columns)])
    tiles = padded[0] // SWIZZLE_ROWS, padded[1] // SWIZZLE_COLUMNS
    data = data.reshape(*batch, tiles[0], SWIZZLE_ROWS // SWIZZLE_LANES, SWIZZLE_LANES, tiles[1], SWIZZLE_COLUMNS)
    # (row tile, quarter, lane, column tile, column) -> (row tile, column tile, lane, quarter, column)
    data = jnp.moveaxis(data, (-5, -2, -3, -4, -1), (-5, -4, -3, -2, -1))
    return jax.lax.bitcast_convert_type(data.reshape(*batch, *padded), scales.dtype)


def unswizzle_scales(scales, shape: tuple[int, int]) -> jax.Array:
    """Swizzled to linear block scales, the inverse of `swizzle_scales`.

    Args:
        scales: (..., Rpad, Cpad), swizzled bytes.
        shape: (R, C) without padding.

    Returns:
        (..., R, C).

    Raises:
        TypeError: elements are not one byte.
        ValueError: `shape` padded to whole tiles is not the shape of `scales`.
    """
    scales = _one_byte(scales)
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise TypeError(f"shape must be (R, C), rows and columns of the linear scales, got {brief(shape)}")
    linear = tuple(n if is_symbolic_dim(n) else arguments.integer(n, "a dimension of shape") for n in shape)
    expected = swizzled_shape(linear)
    if scales.shape[-2:] != expected:
        raise ValueError(f"linear scales of shape {linear} are {expected} when swizzled, got {scales.shape[-2:]}")
    return _unswizzle(scales, linear)


@partial(jax.jit, static_argnums=1)
def _unswizzle(scales, shape: tuple) -> jax.Array:
    *batch, rows, columns = scales.shape
    data = jax.lax.bitcast_convert_type(scales, jnp.uint8)
    tiles = rows // SWIZZLE_ROWS, columns // SWIZZLE_COLUMNS
    data = data.reshape(*batch, *tiles, SWIZZLE_LANES, SWIZZLE_ROWS // SWIZZLE_LANES, SWIZZLE_COLUMNS)
    data = jnp.moveaxis(data, (-5, -4, -3, -2, -1), (-5, -2, -3, -4, -1)).reshape(*batch, rows, columns)
    return jax.lax.bitcast_convert_type(data[..., : shape[0], : shape[1]], scales.dtype)


def unswizzle_group_scales(scales, shape: tuple[int, int], group_blocks) -> jax.Array:
    """The linear scales inside columnwise ones whose swizzle restarts with every group (section 9).

    Args:
        scales: (..., Rpad, Cpad), the regions of the groups one after the other.
        shape: (R, C) without padding.
        group_blocks: int32 (..., E), how many columns of scales each group has, multiples of 8.

    Returns:
        (..., R, C), the columns after the last group as they lie in a region of their own.
    """
    *batch, rows, columns = scales.shape
    row, column = jnp.arange(shape[0], dtype=jnp.int32)[:, None], jnp.arange(shape[1], dtype=jnp.int32)
    ends = jnp.cumsum(group_blocks, axis=-1)
    bounds = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends, jnp.full_like(ends[..., :1], columns)], axis=-1)
    region = jnp.sum(column[:, None] >= ends[..., None, :], axis=-1, dtype=jnp.int32)
    first, end = (jnp.take_along_axis(bounds, region + i, axis=-1)[..., None, :] for i in (0, 1))
    tile = row // SWIZZLE_ROWS * ((end - first) // SWIZZLE_COLUMNS) + (column - first) // SWIZZLE_COLUMNS
    inside = row % SWIZZLE_LANES * (SWIZZLE_ROWS // SWIZZLE_LANES) + row % SWIZZLE_ROWS // SWIZZLE_LANES
    byte = first * rows + (tile * SWIZZLE_ROWS + inside) * SWIZZLE_COLUMNS + (column - first) % SWIZZLE_COLUMNS
    flat = jax.lax.bitcast_convert_type(scales, jnp.uint8).reshape(*batch, -1)
    linear = jnp.take_along_axis(flat, byte.reshape(*batch, -1), axis=-1)
    return jax.lax.bitcast_convert_type(linear.reshape(*batch, *shape), scales.dtype)


def _one_byte(scales) -> jax.Array:
    scales = arguments.array(scales, "scales", "an array of block scales")
    if scales.dtype.itemsize != 1:
        raise TypeError(f"block scales are one byte each (float8_e4m3fn or uint8), got {scales.dtype}")
    if scales.ndim < 2:
        raise ValueError(f"block scales have rank >= 2, got shape {scales.shape}")
    return scales
