"""Quantize: codes, block scales and amax."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jax_nvfp4.mode import Mode
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax_of
from jax_nvfp4.sharding import shard_start
from jax_nvfp4.spec import NVFP4, QuantSpec
from jax_nvfp4.tensor import BlockScaled


def quantize(x, spec: QuantSpec = NVFP4, *, axis: int = -1, amax=None, key=None, origin=None) -> BlockScaled:
    """Quantize `x` along one of its last two axes (docs/numerics.md sections 2, 4 and 6).

    Args:
        x: (..., M, K), bfloat16, float16 or float32. Leading axes are batch: each matrix has its own amax.
        spec: block shape, amax scope and scale layout.
        axis: -1 for blocks along K (rowwise), -2 for blocks along M (columnwise, stored transposed).
        amax: float32, (...,), (..., M) for scope "row", or one for all; computed from `x` when it is None.
        key: a JAX random key for stochastic rounding; None rounds to nearest even.
        origin: (batch, row, column) of `x` in the array whose random stream it shares, in elements, a multiple of
            the block along the quantized axis. Only code that runs on a part of an array inside its own `shard_map`
            needs it, and only with a key.

    Returns:
        A `BlockScaled` whose codes are (..., M, K/2), or (..., K, M/2) for axis -2.

    Raises:
        TypeError: wrong dtype of `x`, `amax`, `key` or `origin`; also when differentiated.
        ValueError: wrong rank, axis or shape, an axis that does not hold whole blocks, a key with 16x16 blocks, or
            an origin without a key or inside a block.
    """
    x, spec = arguments.matrix(x), arguments.quant_spec(spec)
    axis = arguments.block_axis(axis, x.ndim)
    arguments.whole_blocks(x, spec, axis)
    amax = amax_of(x, spec, amax)
    random = _random(x, (spec,), (axis,), key, origin)
    codes, scales = _quantize(x, amax, *random, mode=spec.mode(axis, stochastic=key is not None))
    return BlockScaled(codes, scales, amax, spec, axis)


def quantize_dual(
    x, spec: QuantSpec = NVFP4, *, col_spec: QuantSpec | None = None, amax=None, col_amax=None, key=None, origin=None
) -> tuple[BlockScaled, BlockScaled]:
    """Quantize `x` along both of its last two axes in one call.

    With 16x16 blocks both results come from one read of `x`, and the code of every element is the same in both.

    Args:
        x: (..., M, K), bfloat16, float16 or float32; M and K multiples of 16.
        spec: the spec of the row result, and of the column result unless `col_spec` is given.
        col_spec: the spec of the column result.
        amax, col_amax: as in `quantize`; `col_amax` defaults to `amax`.
        key: a JAX random key for stochastic rounding of both (their random streams differ).
        origin: as in `quantize`.

    Returns:
        (row, col): `quantize(x, spec, axis=-1)` and `quantize(x, col_spec, axis=-2)`.

    Raises:
        TypeError, ValueError: as `quantize` does.
    """
    x, spec = arguments.matrix(x), arguments.quant_spec(spec)
    col_spec = spec if col_spec is None else arguments.quant_spec(col_spec, "col_spec")
    arguments.whole_blocks(x, spec, -1)
    arguments.whole_blocks(x, col_spec, -2)
    amax = amax_of(x, spec, amax)
    is_shared = col_amax is None and spec.scope == col_spec.scope
    col_amax = amax if is_shared else amax_of(x, col_spec, col_amax)
    random = _random(x, (spec, col_spec), (-1, -2), key, origin)
    row_mode, col_mode = (s.mode(a, stochastic=key is not None) for s, a in ((spec, -1), (col_spec, -2)))
    if is_shared and spec.block == col_spec.block:
        results = _quantize(x, amax, *random, mode=replace(row_mode, col=col_mode.col))
    else:
        results = [
            *_quantize(x, amax, *random, mode=row_mode),
            *_quantize(x, col_amax, *random, mode=col_mode),
        ]
    row, col = (*results[:2], amax, spec, -1), (*results[2:], col_amax, col_spec, -2)
    return BlockScaled(*row), BlockScaled(*col)


def quantize_tokens(x, spec: QuantSpec, axis: int, amax, words=None) -> BlockScaled:
    """`quantize` of (..., T, C) whose leading axes are not batch, but part of one long axis of tokens.

    Args:
        x, spec, axis: as in `quantize`, checked.
        amax: one for all, float32.
        words: the key words of stochastic rounding, whose coordinates are those of (tokens, C).
    """
    *batch, tokens, _ = x.shape
    random: tuple[jax.Array, ...] = ()
    if words is not None:
        row = jax.lax.iota(jnp.uint32, math.prod(batch)).reshape(batch) * jnp.uint32(tokens)
        random = jnp.broadcast_to(words, (*batch, 2)), jnp.stack([row * 0, row, row * 0], axis=-1)
    amax = jnp.broadcast_to(amax, batch)
    codes, scales = _quantize(x, amax, *random, mode=spec.mode(axis, stochastic=words is not None))
    return BlockScaled(codes, scales, amax, spec, axis)


def _random(x, specs, axes, key, origin) -> tuple[jax.Array, ...]:
    """The operands of a call that rounds stochastically: the seed and the origin of each matrix; none without a key."""
    if key is None:
        if origin is not None:
            raise ValueError(f"origin belongs to stochastic rounding, got origin={origin!r} without a key")
        return ()
    for spec in specs:
        if spec.is_tile:
            raise ValueError(f"{spec.block} blocks are never rounded stochastically (section 4): leave out the key")
    arguments.check_key(key)
    batch = x.shape[:-2]
    return _stream(
        batch, key, *arguments.origin(origin, {axis: spec.facts.block for axis, spec in zip(axes, specs, strict=True)})
    )


@partial(jax.jit, static_argnums=(0, 2))
def _stream(batch: tuple[int, ...], key, static_origin, *traced_origin) -> tuple[jax.Array, jax.Array]:
    """Per matrix its two Philox key words, and its batch index with the row and column of its first element."""
    words = arguments.key_words(key)
    first, row, column = (jnp.asarray(o, jnp.uint32) for o in static_origin or traced_origin)
    index = jax.lax.iota(jnp.uint32, math.prod(batch)).reshape(batch) + first
    origin = jnp.stack([index, jnp.broadcast_to(row, batch), jnp.broadcast_to(column, batch)], axis=-1)
    return jnp.broadcast_to(words, (*batch, 2)), origin


def _local(bind, operands, mode: Mode, axes):
    if not mode.stochastic:
        return bind(*operands)
    x, *scales, seed, origin = operands
    start = jnp.stack([jnp.uint32(0), shard_start(axes, "m", x.shape[-2]), shard_start(axes, "k", x.shape[-1])])
    return bind(x, *scales, seed, origin + start)


def _batch(size, mapped, operands):
    """The mapped index joins the batch index as its slowest part (section 6), where it does not have one yet."""
    *others, origin = operands
    if len(operands) > 2 and not mapped[-1]:
        x = operands[0]
        index = jax.lax.broadcasted_iota(jnp.uint32, origin.shape[:-1], 0) * jnp.uint32(math.prod(x.shape[1:-2]))
        origin = origin.at[..., 0].add(index)
    return *others, origin


_quantize = Operation("quantize", local=_local, batch=_batch)
