"""Padding an axis to whole blocks."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jax_nvfp4.formats import NVFP4_FORMAT, round_up
from jax_nvfp4.ops import arguments


def pad_to_blocks(x, *, axis: int = -1, multiple: int = NVFP4_FORMAT.block) -> jax.Array:
    """`x` with zeros appended along `axis` up to a multiple of `multiple`.

    Zeros change neither an amax nor the scale of the block they join, and add nothing to a product.

    Args:
        x: any array.
        axis: the axis to pad.
        multiple: the size of a block.

    Returns:
        `x` itself where nothing is missing.

    Raises:
        TypeError: `x` is no array, or `axis` or `multiple` no int.
        ValueError: `x` has no such axis, or `multiple` is less than 1.
    """
    x = arguments.array(x, what="an array")
    axis, multiple = arguments.integer(axis, "axis"), arguments.integer(multiple, "multiple")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis must be one of the {x.ndim} axes of x {x.shape}, got {axis}")
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, for example {NVFP4_FORMAT.block}, got {multiple}")
    missing = round_up(x.shape[axis], multiple) - x.shape[axis]
    return x if isinstance(missing, int) and missing == 0 else _pad(x, axis, multiple)


@partial(jax.jit, static_argnums=(1, 2))
def _pad(x, axis: int, multiple: int) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, round_up(x.shape[axis], multiple) - x.shape[axis])
    return jnp.pad(x, widths)
