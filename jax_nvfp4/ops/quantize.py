"""Quantize: codes, block scales and amax."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jax_nvfp4.mode import VERBS, Mode
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax as compute_amax
from jax_nvfp4.ops.amax import amax_of
from jax_nvfp4.sharding import local_groups, shard_start
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
    arguments.not_grouped(spec)
    arguments.whole_blocks(x, spec, axis)
    arguments.exact(spec)
    (t,) = run(x, {axis: spec}, {axis: amax_of(x, spec, amax)}, key, origin)
    return t


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
    for s, axis in ((spec, -1), (col_spec, -2)):
        arguments.not_grouped(s)
        arguments.whole_blocks(x, s, axis)
    if amax is None and col_amax is None and col_spec.rht is not None and spec.scope == "tensor":
        amax, col_amax = compute_amax(x, rht=col_spec.rht, dual=True)
    amax = amax_of(x, spec, amax)
    if col_amax is None and spec.scope == col_spec.scope and col_spec.rht is None:
        col_amax = amax
    else:
        col_amax = amax_of(x, col_spec, col_amax, "col_amax")
    amaxes = {-1: amax, -2: col_amax}
    if _same_scaling(spec, col_spec) and (not spec.is_tile or col_amax is amax):
        row, col = run(x, {-1: spec, -2: col_spec}, amaxes, key, origin)
    else:
        (row,), (col,) = (run(x, {axis: s}, amaxes, key, origin) for axis, s in ((-1, spec), (-2, col_spec)))
    return row, with_own_amax(col)


def with_own_amax(t: BlockScaled) -> BlockScaled:
    """`t` with a copy of its amax: either of two results may be donated or deleted, and leaves the other whole."""
    return t if t.amax is None else replace(t, amax=jnp.array(t.amax, copy=True))


def _same_scaling(spec: QuantSpec, col_spec: QuantSpec) -> bool:
    """Whether one call can make both: all but the scale layout, the transform and its math must agree."""
    return replace(spec, scale_layout="linear") == replace(col_spec, scale_layout="linear", rht=None, math="exact")


def run(x, specs, amaxes, key=None, origin=None, *, groups=(), zero_tail: bool = True) -> tuple[BlockScaled, ...]:
    """One call.

    Args:
        x: (..., M, K).
        specs: axis -> spec, of one output or of both.
        amaxes: axis -> the amax of that output; with 16x16 blocks there is one for both.
        key, origin: as in `quantize`.
        groups: (group_sizes,) where the scope is a group.
        zero_tail: whether rows past the last group are written.
    """
    row, col = (specs[axis].direction(key is not None) if axis in specs else None for axis in (-1, -2))
    # Of two, the columnwise spec is the one that can ask for fast math.
    mode = replace(list(specs.values())[-1].scaling, zero_tail=zero_tail, row=row, col=col)
    scales = [amaxes[axis] for axis in specs if amaxes[axis] is not None]
    results = _quantize(x, *scales[: 2 if mode.is_dual else 1], *groups, *_random(x, specs, key, origin), mode=mode)
    pairs = zip(results[0::2], results[1::2], strict=True)
    return tuple(
        BlockScaled(codes, scales, amaxes[axis], spec, axis, *groups)
        for (axis, spec), (codes, scales) in zip(specs.items(), pairs, strict=True)
    )


def quantize_tokens(x, spec: QuantSpec, axis: int, amax, words=None) -> BlockScaled:
    """`quantize` of (..., T, C) whose leading axes are not batch, but part of one long axis of tokens.

    Args:
        x, spec, axis: as in `quantize`, checked.
        amax: one for all, float32; None for formats without one.
        words: the key words of stochastic rounding, whose coordinates are those of (tokens, C).
    """
    *batch, tokens, _ = x.shape
    random: tuple[jax.Array, ...] = ()
    if words is not None:
        row = jax.lax.iota(jnp.uint32, math.prod(batch)).reshape(batch) * jnp.uint32(tokens)
        random = jnp.broadcast_to(words, (*batch, 2)), jnp.stack([row * 0, row, row * 0], axis=-1)
    amax = None if amax is None else jnp.broadcast_to(amax, batch)
    given = () if amax is None else (amax,)
    codes, scales = _quantize(x, *given, *random, mode=spec.mode(axis, stochastic=words is not None))
    return BlockScaled(codes, scales, amax, spec, axis)


def _random(x, specs, key, origin) -> tuple[jax.Array, ...]:
    """The operands of a call that rounds stochastically: the seed and the origin of each matrix; none without a key."""
    if key is None:
        if origin is not None:
            raise ValueError(f"origin belongs to stochastic rounding, got origin={origin!r} without a key")
        return ()
    for spec in specs.values():
        if spec.is_tile:
            raise ValueError(f"{spec.block} blocks are never rounded stochastically (section 4): leave out the key")
        if not spec.facts.has_amax:
            raise ValueError(f"format {spec.format!r} is never rounded stochastically (section 8): leave out the key")
        if spec.four_over_six is not None:
            raise ValueError("four-over-six is never rounded stochastically (section 5): leave out the key")
    arguments.check_key(key)
    blocks = {axis: spec.facts.block for axis, spec in specs.items()}
    return _stream(x.shape[:-2], key, *arguments.origin(origin, blocks))


@partial(jax.jit, static_argnums=(0, 2))
def _stream(batch: tuple[int, ...], key, static_origin, *traced_origin) -> tuple[jax.Array, jax.Array]:
    """Per matrix its two Philox key words, and its batch index with the row and column of its first element."""
    words = arguments.key_words(key)
    first, row, column = (jnp.asarray(o, jnp.uint32) for o in static_origin or traced_origin)
    index = jax.lax.iota(jnp.uint32, math.prod(batch)).reshape(batch) + first
    origin = jnp.stack([index, jnp.broadcast_to(row, batch), jnp.broadcast_to(column, batch)], axis=-1)
    return jnp.broadcast_to(words, (*batch, 2)), origin


def _local(bind, operands, mode: Mode, axes):
    """Random numbers and groups depend on where the shard lies."""
    roles = [role.name for role in VERBS["quantize"](mode)[0]]
    of = dict(zip(roles, operands, strict=True))
    rows, columns = of["x"].shape[-2:]
    if "group_sizes" in of:
        of["group_sizes"] = local_groups(of["group_sizes"], axes, rows)
    if "origin" in of:
        start = [jnp.uint32(0), shard_start(axes, "m", rows), shard_start(axes, "k", columns)]
        of["origin"] += jnp.stack(start)
    return bind(*of.values())


def _batch(size, mapped, operands, mode: Mode):
    """The mapped index joins the batch index as its slowest part (section 6), where it does not have one yet."""
    if not mode.stochastic or mapped[-1]:
        return operands
    x, *others, origin = operands
    index = jax.lax.broadcasted_iota(jnp.uint32, origin.shape[:-1], 0) * jnp.uint32(math.prod(x.shape[1:-2]))
    return x, *others, origin.at[..., 0].add(index)


_quantize = Operation("quantize", local=_local, batch=_batch)
