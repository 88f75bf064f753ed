"""The order of block scales that block-scaled matrix units read: tiles of 128x4 (docs/numerics.md section 9)."""

from __future__ import annotations

import numpy as np

from jax_nvfp4.formats import SWIZZLE_COLUMNS, swizzled_shape


def swizzle_scales(scales: np.ndarray) -> np.ndarray:
    """Pads linear scales with zero bytes and reorders them into swizzled order.

    Args:
        scales: (..., R, C/16), any one-byte dtype.

    Returns:
        (..., ceil128(R), ceil4(C/16)) of the same dtype, whose row-major bytes are the swizzled bytes.

    Raises:
        ValueError: fewer than two axes.
    """
    if scales.ndim < 2:
        raise ValueError(f"scales must be (..., R, C/16), got shape {scales.shape}: add the missing axis")
    *batch, rows, columns = scales.shape
    padded = np.zeros(swizzled_shape(scales.shape), scales.dtype)
    padded[..., :rows, :columns] = scales
    # Row r is (r/128, r%128/32, r%32), column c is (c/4, c%4).
    tiles = padded.reshape(*batch, padded.shape[-2] // 128, 4, 32, padded.shape[-1] // 4, 4)
    return np.moveaxis(tiles, (-2, -3, -4), (-4, -3, -2)).reshape(padded.shape)


def unswizzle_scales(swizzled: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The linear scales inside swizzled ones, the inverse of `swizzle_scales`.

    Args:
        swizzled: (..., ceil128(R), ceil4(C/16)), any one-byte dtype.
        shape: (..., R, C/16), the shape of the linear scales.

    Returns:
        Array of `shape`, the dtype of `swizzled`.

    Raises:
        ValueError: `swizzled` is not the swizzled shape of `shape`.
    """
    if swizzled.shape != swizzled_shape(shape):
        raise ValueError(
            f"scales of shape {tuple(shape)} have the swizzled shape {swizzled_shape(shape)}, got {swizzled.shape}"
        )
    *batch, rows, columns = swizzled.shape
    tiles = swizzled.reshape(*batch, rows // 128, columns // 4, 32, 4, 4)
    linear = np.moveaxis(tiles, (-4, -3, -2), (-2, -3, -4)).reshape(swizzled.shape)
    return linear[..., : shape[-2], : shape[-1]].copy()


def group_regions(group_blocks: np.ndarray) -> list[slice]:
    """The scale columns of each group that is not empty."""
    ends = np.cumsum(group_blocks)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, group_blocks, strict=True) if size]


def swizzle_group_scales(scales: np.ndarray, group_blocks: np.ndarray) -> np.ndarray:
    """Swizzles columnwise scales of a grouped operand, group by group, one after the other.

    Args:
        scales: (..., N, C), any one-byte dtype.
        group_blocks: int (..., E), the columns of scales of each group, multiples of 4.

    Returns:
        (..., ceil128(N), ceil4(C)) of the same dtype. Group g starts at byte ceil128(N) * (its first column); bytes
        past the last group are zero.

    Raises:
        ValueError: a group that does not fill whole tiles.
    """
    if (group_blocks % SWIZZLE_COLUMNS).any():
        raise ValueError(f"every group must have a multiple of {SWIZZLE_COLUMNS} columns of scales, got {group_blocks}")
    out = np.zeros(swizzled_shape(scales.shape), scales.dtype)
    rows = out.shape[-2]
    for batch in np.ndindex(scales.shape[:-2]):
        flat = out[batch].reshape(-1)
        for region in group_regions(group_blocks[batch]):
            flat[rows * region.start : rows * region.stop] = swizzle_scales(scales[batch][:, region]).reshape(-1)
    return out


def unswizzle_group_scales(swizzled: np.ndarray, shape: tuple[int, ...], group_blocks: np.ndarray) -> np.ndarray:
    """The linear scales inside those of `swizzle_group_scales`; columns past the last group are zero.

    Args:
        swizzled: (..., ceil128(N), ceil4(C)).
        shape: (..., N, C), the shape of the linear scales.
        group_blocks: as in `swizzle_group_scales`.

    Returns:
        Array of `shape`, the dtype of `swizzled`.

    Raises:
        ValueError: as `unswizzle_scales`.
    """
    if swizzled.shape != swizzled_shape(shape):
        raise ValueError(
            f"scales of shape {tuple(shape)} have the swizzled shape {swizzled_shape(shape)}, got {swizzled.shape}"
        )
    out = np.zeros(shape, swizzled.dtype)
    rows = swizzled.shape[-2]
    for batch in np.ndindex(*shape[:-2]):
        flat = swizzled[batch].reshape(-1)
        for region in group_regions(group_blocks[batch]):
            columns = region.stop - region.start
            bytes_of_group = flat[rows * region.start : rows * region.stop].reshape(rows, columns)
            out[batch][:, region] = unswizzle_scales(bytes_of_group, (shape[-2], columns))
    return out
