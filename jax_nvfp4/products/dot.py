"""`dot`: the product of a dense layer, in NVFP4 forward and backward.

| product | left | right |
|---|---|---|
| y = x wT | x rowwise, nearest | w 16x16, rowwise |
| dx = dy w | dy rowwise, stochastic with a key | w 16x16, columnwise: the codes of the forward pass, transposed |
| dw = dyT x | dy columnwise, stochastic with a key | x columnwise, nearest, kept from the forward pass |

Kept for the backward pass are codes, block scales and amaxes, nothing in high precision.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax
from jax_nvfp4.ops.padding import pad_to_blocks
from jax_nvfp4.ops.qdq import qdq
from jax_nvfp4.ops.quantize import quantize, quantize_dual
from jax_nvfp4.products.matmul import block_scaled_matmul
from jax_nvfp4.sharding import same_varying
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe
from jax_nvfp4.tensor import BlockScaled

RESIDUAL_NAME = "nvfp4_q"
"""The `checkpoint_name` of everything `dot` keeps: `save_only_these_names("nvfp4_q")` avoids quantizing twice."""


def dot(x, w, recipe: Recipe = NVFP4_TRAINING, key=None) -> jax.Array:
    """x wT, both operands quantized as `recipe` says, with a gradient that is quantized too.

    Accumulation is in float32. Rows of `x` (tokens) may be any number; they are padded with zeros to a multiple of
    16 where blocks run along them.

    Args:
        x: (..., K), bfloat16, float16 or float32. All leading axes together are the tokens, with one amax.
        w: (N, K), the dtype of `x`.
        recipe: `NVFP4_TRAINING`, `NVFP4_QAT`, or a `Recipe` of your own.
        key: a JAX random key makes the rounding of dy stochastic; None rounds to nearest. Fold in the step:
            the same key repeats the same rounding.

    Returns:
        (..., N) in the dtype of `x`.

    Raises:
        TypeError: wrong or differing dtypes, a `recipe` or `key` of another type.
        ValueError: shapes that do not fit, or K or N not multiples of 16.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe such as jax_nvfp4.NVFP4_TRAINING, got {recipe!r}")
    x, w = jnp.asarray(x), arguments.matrix(w, "w")
    if x.dtype != w.dtype:
        raise TypeError(f"x and w must have one dtype, got {x.dtype} and {w.dtype}: cast one of them")
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[-1]:
        raise ValueError(f"expected x of shape (..., K) and w of shape (N, K), got {x.shape} and {w.shape}")
    for axis, name in ((-2, "N"), (-1, "K")) if recipe.is_training else ((-1, "K"),):
        if w.shape[axis] % recipe.w.facts.block != 0:
            raise ValueError(
                f"{name} = {w.shape[axis]} of w {w.shape} is not a multiple of {recipe.w.facts.block}: pad it, for "
                f"example with jax_nvfp4.pad_to_blocks(w, axis={axis})" + (" and x likewise" if name == "K" else "")
            )
    if key is not None:
        arguments.check_key(key)
    return _dot(x, w, key, recipe)


@partial(jax.jit, static_argnums=3)
def _dot(x, w, key, recipe: Recipe):
    if not recipe.is_training:
        return jax.lax.dot_general(
            x, qdq(w, recipe.w), (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        ).astype(x.dtype)
    *batch, k = x.shape
    # Inside shard_map, the gradient of an operand that all shards share is the sum over the shards.
    tokens, w = same_varying(x.reshape(-1, k), w)
    y = _training_dot(tokens, w, key, recipe)
    return y.reshape(*batch, w.shape[0])


class _Residuals(NamedTuple):
    """What the backward pass reads."""

    x: BlockScaled  # columnwise
    w: BlockScaled  # columnwise
    key: jax.Array | None


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _training_dot(x, w, key, recipe: Recipe):
    return _training_dot_fwd(x, w, key, recipe)[0]


def _training_dot_fwd(x, w, key, recipe: Recipe):
    x_row, x_col = _both_ways(x, recipe.x)
    w_row, w_col = quantize_dual(w, recipe.w)
    x_col, w_col = checkpoint_name((x_col, w_col), RESIDUAL_NAME)
    residuals = _Residuals(x_col, w_col, key)
    return block_scaled_matmul(x_row, w_row, x.dtype), residuals


def _training_dot_bwd(recipe: Recipe, residuals: _Residuals, dy):
    x, w, key = residuals
    dy_row, dy_col = _both_ways(dy, recipe.grad, key)
    dx = block_scaled_matmul(dy_row, w.T, dy.dtype)
    dw = block_scaled_matmul(dy_col.T, x.T, dy.dtype)
    return dx, dw, None


_training_dot.defvjp(_training_dot_fwd, _training_dot_bwd)


def _both_ways(x, spec, key=None) -> tuple[BlockScaled, BlockScaled]:
    """`x` (tokens, features) rowwise and columnwise with one amax; the columnwise tokens padded to whole blocks."""
    scale = amax(x)
    row = quantize(x, spec, axis=-1, amax=scale, key=key)
    return row, quantize(pad_to_blocks(x, axis=-2), spec, axis=-2, amax=scale, key=key)
