"""The order of block scales that block-scaled matrix units read: tiles of 128x4 (docs/numerics.md section 9)."""

from __future__ import annotations

import numpy as np

from jax_nvfp4.formats import swizzled_shape as padded_shape


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
    padded = np.zeros(padded_shape(scales.shape), scales.dtype)
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
    if swizzled.shape != padded_shape(shape):
        raise ValueError(
            f"scales of shape {tuple(shape)} have the swizzled shape {padded_shape(shape)}, got {swizzled.shape}"
        )
    *batch, rows, columns = swizzled.shape
    tiles = swizzled.reshape(*batch, rows // 128, columns // 4, 32, 4, 4)
    linear = np.moveaxis(tiles, (-4, -3, -2), (-2, -3, -4)).reshape(swizzled.shape)
    return linear[..., : shape[-2], : shape[-1]].copy()
