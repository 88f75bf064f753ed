"""`dot`: the product of a dense layer, in NVFP4 forward and backward.

| product | left | right |
|---|---|---|
| y = x wT | x rowwise, nearest | w 16x16, rowwise |
| dx = dy w | dy rowwise, stochastic with a key | w 16x16, columnwise: the codes of the forward pass, transposed |
| dw = dyT x | dy columnwise, transformed, stochastic with a key | x columnwise, transformed, kept |

The transform is `Recipe.rht`. MXFP8 has neither transform nor stochastic rounding, and 32x1 blocks for w columnwise.

Kept for the backward pass are codes, block scales and amaxes, nothing in high precision. Without one, the columnwise
copies of x and w are not made.

On a mesh with Explicit axes results and gradients are sharded as those of `jnp.einsum("...k,nk->...n", x, w)`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax
from jax_nvfp4.ops.padding import pad_to_blocks
from jax_nvfp4.ops.qdq import qdq
from jax_nvfp4.ops.quantize import quantize, quantize_dual, quantize_tokens
from jax_nvfp4.products.matmul import scaled_product
from jax_nvfp4.sharding import explicit_axes, explicit_sharding, merged, replicate, same_varying, whole_blocks
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe
from jax_nvfp4.tensor import BlockScaled

RESIDUAL_NAME = "nvfp4_q"
"""The `checkpoint_name` of everything `dot` keeps: `save_only_these_names("nvfp4_q")` avoids quantizing twice."""


def dot(x, w, recipe: Recipe = NVFP4_TRAINING, key=None, *, out_sharding=None) -> jax.Array:
    """x wT, both operands quantized as `recipe` says, with a gradient that is quantized too.

    Accumulation is in float32. Rows of `x` (tokens) may be any number; they are padded with zeros to a multiple of
    16 where blocks run along them. With a training recipe only reverse-mode derivatives of first order are defined:
    `jax.jvp` and `jax.linearize` raise JAX's error for a `custom_vjp`, `jax.grad` of a gradient a TypeError.

    Args:
        x: (..., K), bfloat16, float16 or float32. All leading axes together are the tokens, with one amax.
        w: (N, K), the dtype of `x`.
        recipe: `NVFP4_TRAINING`, `NVFP4_QAT`, `MXFP8_TRAINING`, or a `Recipe` of your own.
        key: a JAX random key makes the rounding of dy stochastic; None rounds to nearest, and so does MXFP8 always.
            Fold in the step: the same key repeats the same rounding.
        out_sharding: the sharding of the result on a mesh with Explicit axes, where the shardings of `x` and `w` leave
            it open, as in `jnp.einsum`.

    Returns:
        (..., N) in the dtype of `x`.

    Raises:
        TypeError: wrong or differing dtypes, a `recipe` or `key` of another type, a quantized operand.
        ValueError: shapes that do not fit, or K or N not multiples of 16.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe such as jax_nvfp4.NVFP4_TRAINING, got {recipe!r}")
    for name, operand in (("x", x), ("w", w)):
        if isinstance(operand, BlockScaled):
            raise TypeError(
                f"{name} is quantized already, and dot quantizes its operands itself: multiply two BlockScaled with "
                "jax_nvfp4.block_scaled_matmul, or pass arrays"
            )
    x, w = jnp.asarray(x), arguments.matrix(w, "w")
    if x.dtype != w.dtype:
        raise TypeError(f"x and w must have one dtype, got {x.dtype} and {w.dtype}: cast one of them")
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[-1]:
        raise ValueError(f"expected x of shape (..., K) and w of shape (N, K), got {x.shape} and {w.shape}")
    for axis, name in ((-2, "N"), (-1, "K")) if recipe.is_training or recipe.w.is_tile else ((-1, "K"),):
        if w.shape[axis] % recipe.w.facts.block != 0:
            raise ValueError(
                f"{name} = {w.shape[axis]} of w {w.shape} is not a multiple of {recipe.w.facts.block}: pad it, for "
                f"example with jax_nvfp4.pad_to_blocks(w, axis={axis})" + (" and x likewise" if name == "K" else "")
            )
    if key is not None:
        arguments.check_key(key)
    return _dot(x, w, key, recipe, out_sharding)


@partial(jax.jit, static_argnums=(3, 4))
def _dot(x, w, key, recipe: Recipe, out_sharding):
    # What the plain product refuses is refused in its words, and what it returns is the type of the result.
    y = jax.eval_shape(partial(jnp.einsum, "...k,nk->...n", out_sharding=out_sharding), x, w)
    y_sharding = explicit_sharding(y)
    if not recipe.is_training:
        contracted = (((x.ndim - 1,), (1,)), ((), ()))
        product = partial(jax.lax.dot_general, preferred_element_type=jnp.float32, out_sharding=y_sharding)
        rows, columns = recipe.w.block
        whole = whole_blocks(whole_blocks(w, -1, columns), -2, rows)
        return product(x, qdq(whole, recipe.w), contracted).astype(x.dtype)
    counts = _token_axes(x, y)
    (x_shape, x_sharding), (_, merged_sharding) = merged(x, counts), merged(y, counts)
    # Inside shard_map, the gradient of an operand that all shards share is the sum over the shards.
    tokens, w = same_varying(jax.lax.reshape(x, x_shape, out_sharding=x_sharding), w)
    # An operand that is on no mesh is the same everywhere, and so is its cotangent.
    everywhere = y_sharding and NamedSharding(y_sharding.mesh, PartitionSpec())
    shardings = _Shardings(x_sharding or everywhere, explicit_sharding(w) or everywhere, merged_sharding)
    return jax.lax.reshape(_training_dot(tokens, w, key, recipe, shardings), y.shape, out_sharding=y_sharding)


def _token_axes(x, y) -> list[int]:
    """How many consecutive axes of x and y can be one and move nothing: all tokens, where no mesh is Explicit."""
    counts: list[int] = []
    for x_axes, y_axes in zip(explicit_axes(x)[:-1], explicit_axes(y)[:-1], strict=True):
        if counts and not x_axes and not y_axes:
            counts[-1] += 1
        else:
            counts.append(1)
    return [*(counts or [0]), 1]


class _Shardings(NamedTuple):
    """How x, w and y are sharded, and their cotangents: under Explicit axes; None under others."""

    x: NamedSharding | None
    w: NamedSharding | None
    y: NamedSharding | None


class _Residuals(NamedTuple):
    """What the backward pass reads."""

    x: BlockScaled  # columnwise
    w: BlockScaled  # columnwise
    key: jax.Array | None


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _training_dot(x, w, key, recipe: Recipe, out: _Shardings):
    w_row, (row, _) = quantize(_whole(w, recipe.w), recipe.w), recipe.both_ways("x")
    return _product_of_rows(_rows(x, row, _amax(x, row)), w_row, x.dtype, out.y)


def _training_dot_fwd(x, w, key, recipe: Recipe, out: _Shardings):
    x, w = _once_differentiable(x, w)
    row, col = recipe.both_ways("x")
    scale = _amax(x, row)
    w_row, w_col = quantize_dual(_whole(w, recipe.w), recipe.w)
    x_col, w_col = checkpoint_name((_columns(x, col, scale), w_col), RESIDUAL_NAME)
    y = _product_of_rows(_rows(x, row, scale), w_row, x.dtype, out.y)
    return y, _Residuals(x_col, w_col, key)


def _training_dot_bwd(recipe: Recipe, out: _Shardings, residuals: _Residuals, dy):
    x, w, key = residuals
    (dy,) = _once_differentiable(dy)
    row, col = recipe.both_ways("grad")
    scale = _amax(dy, row)
    words = arguments.key_words(key) if key is not None and row.facts.has_amax else None
    dy_col = _columns(dy, col, scale, words)
    tokens = (*range(dy_col.ndim - 2), dy_col.ndim - 1)  # as columns are stored
    dx = _product_of_rows(_rows(dy, row, scale, words), w, dy.dtype, out.x)
    dw = scaled_product(dy_col, x, _one(dy_col.amax), _one(x.amax), ((tokens, tokens), ((), ())), dy.dtype, out.w)
    return dx, dw, None


_training_dot.defvjp(_training_dot_fwd, _training_dot_bwd)


def _product_of_rows(x: BlockScaled, w: BlockScaled, dtype, out_sharding) -> jax.Array:
    """Tokens (..., T, C) by `w`, stored as (R, C)."""
    contracted = (((x.ndim - 1,), (1,)), ((), ()))
    return scaled_product(x, w, _one(x.amax), w.amax, contracted, dtype, out_sharding)


def _rows(x, spec, scale, words=None) -> BlockScaled:
    """Tokens (..., T, C) rowwise."""
    return quantize_tokens(whole_blocks(x, -1, spec.facts.block), spec, -1, scale, words)


def _columns(x, spec, scale, words=None) -> BlockScaled:
    """Tokens (..., T, C) columnwise, in blocks of consecutive tokens: in one axis, where T does not hold whole ones.

    A transform has an amax of its own; `scale` is that of the tokens themselves.
    """
    block = spec.facts.block
    if x.ndim > 2 and x.shape[-2] % block != 0:
        x = replicate(x, *range(x.ndim - 1))
        x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    x = pad_to_blocks(whole_blocks(x, -2, block), axis=-2, multiple=block)
    if spec.rht is not None:
        scale = _one(amax(x, rht=spec.rht))
    return quantize_tokens(x, spec, -2, scale, words)


def _whole(w, spec) -> jax.Array:
    """`w`, no block of `spec` along either axis cut by an Explicit mesh axis."""
    return whole_blocks(whole_blocks(w, -1, spec.facts.block), -2, spec.facts.block)


def _amax(x, spec) -> jax.Array | None:
    """One amax for all tokens (..., T, C), where the format has one."""
    return _one(amax(x)) if spec.facts.has_amax else None


def _one(amaxes) -> jax.Array | None:
    return amaxes if amaxes is None or not amaxes.ndim else jnp.max(amaxes, initial=0.0)


@jax.custom_jvp
def _once_differentiable(*arrays):
    """`arrays`. JAX differentiates the two rules of `_training_dot` only where it differentiates a derivative."""
    return arrays


@_once_differentiable.defjvp
def _(primals, tangents):
    raise TypeError(
        "jax_nvfp4.dot with a training recipe has no derivative of second order: its gradient rounds the operands of "
        "two more products, which are step functions. Use NVFP4_QAT, which rounds w only, or jax.lax.stop_gradient on "
        "the gradient"
    )
