"""Quantize to NVFP4: E2M1 codes, E4M3 block scales, float32 amax."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4.ffi import Operation, not_differentiable
from jax_nvfp4.formats import BLOCK, SWIZZLE_ROWS, scale_shape
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax as compute_amax
from jax_nvfp4.sharding import Dims, shard_start
from jax_nvfp4.spec import NVFP4, QuantSpec
from jax_nvfp4.tensor import BlockScaled


def quantize(x, spec: QuantSpec = NVFP4, *, axis: int = -1, amax=None, key=None, origin=(0, 0, 0)) -> BlockScaled:
    """Quantize `x` along one of its last two axes (docs/numerics.md sections 2, 4 and 6).

    Args:
        x: (..., M, K), bfloat16, float16 or float32. Leading axes are batch: each matrix has its own amax.
        spec: block shape, amax scope and scale layout.
        axis: -1 for blocks along K (rowwise), -2 for blocks along M (columnwise, stored transposed).
        amax: float32, (...,) or (..., M) for scope "row"; computed from `x` when it is None.
        key: a JAX random key for stochastic rounding; None rounds to nearest even.
        origin: (batch, row, column) of `x` in the array whose random stream it shares, in elements. Only code
            that runs on a part of an array inside its own `shard_map` needs it.

    Returns:
        A `BlockScaled` whose codes are (..., M, K/2), or (..., K, M/2) for axis -2.

    Raises:
        TypeError: wrong dtype of `x`, `amax` or `key`; also when differentiated.
        ValueError: wrong rank, axis or shape, an axis that does not hold whole blocks, or a key with 16x16 blocks.
    """
    x, spec = arguments.matrix(x), arguments.quant_spec(spec)
    axis = arguments.block_axis(axis, x.ndim)
    arguments.whole_blocks(x, spec, axis)
    if amax is None:
        amax = compute_amax(x, scope=spec.scope)
    amax = arguments.given_amax(amax, x, spec)
    if key is None:
        codes, scales = _nearest(x, amax, axis, spec)
    elif spec.is_tile:
        raise ValueError("16x16 blocks are never rounded stochastically (section 4): leave out the key")
    else:
        codes, scales = _stochastic(x, amax, arguments.key_words(key), _origins(x.shape[:-2], origin), axis, spec)
    return BlockScaled(codes, scales, amax, spec, axis)


def quantize_dual(
    x, spec: QuantSpec = NVFP4, *, col_spec: QuantSpec | None = None, amax=None, col_amax=None, key=None
) -> tuple[BlockScaled, BlockScaled]:
    """Quantize `x` along both of its last two axes.

    With 16x16 blocks both results come from one read of `x`, and the code of every element is the same in both.

    Args:
        x: (..., M, K), bfloat16, float16 or float32; M and K multiples of 16.
        spec: the spec of the row result, and of the column result unless `col_spec` is given.
        col_spec: the spec of the column result.
        amax, col_amax: as in `quantize`; `col_amax` defaults to `amax`.
        key: a JAX random key for stochastic rounding of both (their random streams differ).

    Returns:
        (row, col): `quantize(x, spec, axis=-1)` and `quantize(x, col_spec, axis=-2)`.

    Raises:
        TypeError, ValueError: as `quantize` does.
    """
    x, spec = arguments.matrix(x), arguments.quant_spec(spec)
    col_spec = spec if col_spec is None else arguments.quant_spec(col_spec, "col_spec")
    if amax is None:
        amax = compute_amax(x, scope=spec.scope)
    is_fused = spec.is_tile and col_spec == spec and col_amax is None and key is None
    if not is_fused:
        if col_amax is None:
            col_amax = amax if spec.scope == col_spec.scope else None
        return (
            quantize(x, spec, axis=-1, amax=amax, key=key),
            quantize(x, col_spec, axis=-2, amax=col_amax, key=key),
        )
    arguments.whole_blocks(x, spec, -1)
    amax = arguments.given_amax(amax, x, spec)
    row_codes, row_scales, col_codes, col_scales = _dual(x, amax, spec)
    return BlockScaled(row_codes, row_scales, amax, spec, -1), BlockScaled(col_codes, col_scales, amax, spec, -2)


@partial(jax.jit, static_argnums=(2, 3))
def _nearest(x, amax, axis: int, spec: QuantSpec):
    @not_differentiable("jax_nvfp4.quantize")
    def call(x, amax):
        return _quantize(x, amax, axis=np.int32(axis), tile=spec.is_tile, swizzled=spec.scale_layout == "swizzled")

    return call(x, amax)


@partial(jax.jit, static_argnums=(4, 5))
def _stochastic(x, amax, words, origins, axis: int, spec: QuantSpec):
    @not_differentiable("jax_nvfp4.quantize")
    def call(x, amax):
        seed = jnp.broadcast_to(words, (*x.shape[:-2], 2))
        return _quantize_stochastic(
            x, amax, seed, origins, axis=np.int32(axis), swizzled=spec.scale_layout == "swizzled"
        )

    return call(x, amax)


@partial(jax.jit, static_argnums=2)
def _dual(x, amax, spec: QuantSpec):
    @not_differentiable("jax_nvfp4.quantize_dual")
    def call(x, amax):
        return _quantize_dual(x, amax, swizzled=spec.scale_layout == "swizzled")

    return call(x, amax)


def _origins(batch: tuple[int, ...], origin) -> jax.Array:
    """Per matrix, its batch index and the row and column of its first element: uint32 (..., 3)."""
    if len(origin) != 3:
        raise ValueError(f"origin must be (batch, row, column), got {origin!r}")
    first, row, column = (jnp.asarray(o, jnp.uint32) for o in origin)
    index = jnp.arange(math.prod(batch), dtype=jnp.uint32).reshape(batch) + first
    return jnp.stack([index, jnp.broadcast_to(row, batch), jnp.broadcast_to(column, batch)], axis=-1)


def _shapes(x, amax, *_, axis, swizzled, tile=False):
    *batch, rows, columns = x.shape if axis == -1 else (*x.shape[:-2], x.shape[-1], x.shape[-2])
    scales = scale_shape(rows, columns, "swizzled" if swizzled else "linear")
    return [((*batch, rows, columns // 2), jnp.uint8), ((*batch, *scales), jnp.float8_e4m3fn)]


def _dims(x, amax, *random, axis, swizzled, tile=False):
    # Swizzled bytes interleave the blocks of 128 rows, so only multiples of 128 rows stand alone, with all columns.
    rows, columns = ("m", "k") if axis == -1 else ("k", "m")
    blocks = {rows: SWIZZLE_ROWS} if swizzled else {rows: BLOCK if tile else 1, columns: BLOCK}
    scope = "m" if amax.ndim == x.ndim - 1 else ""
    return Dims(("m k", scope, *("_" for _ in random)), (f"{rows} {columns}",) * 2, blocks)


def _local_stochastic(bind, operands, axes):
    x, amax, seed, origins = operands
    start = jnp.stack([jnp.uint32(0), shard_start(axes, "m", x.shape[-2]), shard_start(axes, "k", x.shape[-1])])
    return bind(x, amax, seed, origins + start)


def _batch_stochastic(size, mapped, operands):
    x, amax, seed, origins = operands
    if not mapped[3]:  # the mapped index joins the batch index as its slowest part (section 6)
        index = jax.lax.broadcasted_iota(jnp.uint32, origins.shape[:-1], 0) * jnp.uint32(math.prod(x.shape[1:-2]))
        origins = origins.at[..., 0].add(index)
    return x, amax, seed, origins


_quantize = Operation("nvfp4_quantize", shapes=_shapes, dims=_dims)

_quantize_stochastic = Operation(
    "nvfp4_quantize_stochastic", shapes=_shapes, dims=_dims, local=_local_stochastic, batch=_batch_stochastic
)

_quantize_dual = Operation(
    "nvfp4_quantize_dual",
    shapes=lambda x, amax, swizzled: [s for axis in (-1, -2) for s in _shapes(x, amax, axis=axis, swizzled=swizzled)],
    dims=lambda x, amax, swizzled: Dims(
        ("m k", ""), ("m k", "m k", "k m", "k m"), {} if swizzled else {"m": BLOCK, "k": BLOCK}
    ),
)
