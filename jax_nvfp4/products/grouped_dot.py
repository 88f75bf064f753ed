"""`grouped_dot`: the product of a mixture's experts, in NVFP4 forward and backward.

| product | left | right |
|---|---|---|
| y[g] = x[g] w[g]T | x rowwise, nearest, an amax per group | w 16x16, rowwise, an amax per expert |
| dx[g] = dy[g] w[g] | dy rowwise, stochastic with a key | w 16x16, columnwise: the codes of the forward pass |
| dw[g] = dy[g]T x[g] | dy columnwise, transformed, stochastic with a key | x columnwise, transformed, nearest, kept |

Kept for the backward pass are codes, block scales, amaxes and the group sizes, nothing in high precision.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.grouped import grouped_quantize, grouped_quantize_dual, pad_groups, unpad_groups
from jax_nvfp4.ops.qdq import qdq
from jax_nvfp4.ops.quantize import quantize, quantize_dual
from jax_nvfp4.products.dot import RESIDUAL_NAME
from jax_nvfp4.products.grouped_matmul import grouped_matmul
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe
from jax_nvfp4.tensor import BlockScaled


def grouped_dot(
    x, w, group_sizes, recipe: Recipe = NVFP4_TRAINING, key=None, *, groups_are_padded: bool = False
) -> jax.Array:
    """x[g] w[g]T for every group, quantized as `recipe` says, with a gradient that is quantized too.

    Accumulation is in float32.

    Args:
        x: (P, K), bfloat16, float16 or float32: groups of rows (tokens), packed one after the other.
        w: (E, N, K), the dtype of `x`.
        group_sizes: (E,) of any integer dtype, the rows of each group, any number of them; together at most P. They
            may be traced. Rows after the last group give zeros and get zero gradients.
        recipe: `NVFP4_TRAINING`, `NVFP4_QAT`, or a `Recipe` of your own.
        key: a JAX random key makes the rounding of dy stochastic; None rounds to nearest. Fold in the step:
            the same key repeats the same rounding.
        groups_are_padded: says that P and every group size are multiples of 16, which saves two copies of the tokens
            (blocks of the backward pass run along them). A size that is none is then an error, see `grouped_quantize`.

    Returns:
        (P, N) in the dtype of `x`. The gradient of the weight of an empty group is exactly zero.

    Raises:
        TypeError: wrong or differing dtypes, a `recipe` or `key` of another type.
        ValueError: shapes that do not fit, or K or N not multiples of 16.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe such as jax_nvfp4.NVFP4_TRAINING, got {recipe!r}")
    x, w = arguments.matrix(x), arguments.matrix(w, "w")
    if x.dtype != w.dtype:
        raise TypeError(f"x and w must have one dtype, got {x.dtype} and {w.dtype}: cast one of them")
    if x.ndim != 2 or w.ndim != 3 or x.shape[-1] != w.shape[-1]:
        raise ValueError(f"expected x of shape (P, K) and w of shape (E, N, K), got {x.shape} and {w.shape}")
    sizes = arguments.group_sizes(group_sizes, x)
    if sizes.shape[0] != w.shape[0]:
        raise ValueError(f"w {w.shape} has {w.shape[0]} experts, group_sizes {sizes.shape} has {sizes.shape[0]} groups")
    for axis in (-2, -1) if recipe.is_training else (-1,):
        arguments.whole_blocks(w, recipe.w, axis, "w")
    if key is not None:
        arguments.check_key(key)
    return _grouped_dot(x, w, sizes, key, recipe, groups_are_padded)


@partial(jax.jit, static_argnums=(4, 5))
def _grouped_dot(x, w, sizes, key, recipe: Recipe, groups_are_padded: bool):
    if not recipe.is_training:
        return _high_precision(x, qdq(w, recipe.w), sizes)
    return _training(x, w, sizes, key, recipe, groups_are_padded)


@jax.custom_vjp
def _high_precision(x, w, sizes):
    return grouped_matmul(x, w, sizes)


def _high_precision_bwd(residuals, dy):
    x, w, sizes = residuals
    return grouped_matmul(dy, jnp.swapaxes(w, 1, 2), sizes), grouped_matmul(dy.T, x.T, sizes), None


_high_precision.defvjp(lambda x, w, sizes: (grouped_matmul(x, w, sizes), (x, w, sizes)), _high_precision_bwd)


class _Residuals(NamedTuple):
    """What the backward pass reads."""

    x: BlockScaled  # columnwise, of padded groups
    w: BlockScaled  # columnwise
    sizes: jax.Array
    key: jax.Array | None


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _training(x, w, sizes, key, recipe: Recipe, groups_are_padded: bool):
    x_row = grouped_quantize(x, sizes, recipe.both_ways("x")[0])
    return grouped_matmul(x_row, quantize(w, recipe.w), sizes, x.dtype)


def _training_fwd(x, w, sizes, key, recipe: Recipe, groups_are_padded: bool):
    padded, padded_sizes = _padded(x, sizes, recipe.w.facts.block, groups_are_padded)
    row, col = recipe.both_ways("x")
    x_row, x_col = grouped_quantize_dual(padded, padded_sizes, row, col_spec=col)
    w_row, w_col = quantize_dual(w, recipe.w)
    x_col, w_col = checkpoint_name((x_col, w_col), RESIDUAL_NAME)
    y = _unpadded(
        grouped_matmul(x_row, w_row, padded_sizes, x.dtype), sizes, x.shape[0], recipe.w.facts.block, groups_are_padded
    )
    return y, _Residuals(x_col, w_col, sizes, key)


def _training_bwd(recipe: Recipe, groups_are_padded: bool, residuals: _Residuals, dy):
    x, w, sizes, key = residuals
    padded, padded_sizes = _padded(dy, sizes, recipe.w.facts.block, groups_are_padded)
    row, col = recipe.both_ways("grad")
    key = key if row.facts.has_amax else None
    dy_row, dy_col = grouped_quantize_dual(padded, padded_sizes, row, col_spec=col, key=key)
    dx = _unpadded(
        grouped_matmul(dy_row, w.T, padded_sizes, dy.dtype), sizes, dy.shape[0], recipe.w.facts.block, groups_are_padded
    )
    return dx, grouped_matmul(dy_col.T, x.T, padded_sizes, dy.dtype), None, None


_training.defvjp(_training_fwd, _training_bwd)


def _padded(x, sizes, block: int, groups_are_padded: bool):
    return (x, sizes) if groups_are_padded else pad_groups(x, sizes, block)


def _unpadded(y, sizes, rows: int, block: int, groups_are_padded: bool):
    return y if groups_are_padded else unpad_groups(y, sizes, rows, block)
