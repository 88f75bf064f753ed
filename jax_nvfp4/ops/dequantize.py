"""From codes and scales back to numbers: with the tensor scale (`dequantize`) or exactly, without it (`decode`)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jax_nvfp4.ffi import Operation, not_differentiable
from jax_nvfp4.formats import BLOCK, FLOAT_DTYPES
from jax_nvfp4.ops.swizzle import unswizzle_scales
from jax_nvfp4.sharding import Dims
from jax_nvfp4.tensor import BlockScaled


def dequantize(t: BlockScaled, dtype=jnp.bfloat16) -> jax.Array:
    """The numbers that `t` stands for (docs/numerics.md section 2, step 7).

    Args:
        t: a quantized operand, blocks along either axis.
        dtype: bfloat16, float16 or float32.

    Returns:
        An array of `t.shape`, rounded once to `dtype`.

    Raises:
        TypeError: `t` is not a BlockScaled, another dtype, or differentiation.
    """
    name = jnp.dtype(dtype).name
    if name not in FLOAT_DTYPES:
        raise TypeError(f"dtype must be one of {', '.join(FLOAT_DTYPES)}, got {name}")
    return _restore(*_linear(t), t.axis, name)


def decode(t: BlockScaled) -> jax.Array:
    """code * block scale as bfloat16, which is exact, without the tensor scale (docs/numerics.md, matrix products).

    Products of two decoded operands, multiplied by `tensor_scale(t.amax)` of both, are the products of the
    dequantized operands with one rounding less.

    Args:
        t: a quantized operand.

    Returns:
        bfloat16 of the shape of the operand as it is stored: (..., R, C), the blocks along the last axis.

    Raises:
        TypeError: `t` is not a BlockScaled, or differentiation.
    """
    codes, scales, _ = _linear(t)
    return _decode_values(codes, scales)


def _linear(t: BlockScaled) -> tuple[jax.Array, jax.Array, jax.Array]:
    if not isinstance(t, BlockScaled):
        raise TypeError(f"expected a BlockScaled, as quantize returns it, got {type(t).__name__}")
    rows, packed = t.codes.shape[-2:]
    blocks = packed * 2 // BLOCK
    scales = t.scales if t.spec.scale_layout == "linear" else unswizzle_scales(t.scales, (rows, blocks))
    expected = (*t.codes.shape[:-1], blocks)
    if scales.shape != expected:
        raise ValueError(f"codes of shape {t.codes.shape} have scales of shape {expected}, got {scales.shape}")
    return t.codes, scales, t.amax


@partial(jax.jit, static_argnums=(3, 4))
def _restore(codes, scales, amax, axis: int, dtype: str):
    @not_differentiable("jax_nvfp4.dequantize")
    def call(codes, scales, amax):
        (y,) = _dequantize(codes, scales, amax, dtype=dtype)
        return y if axis == -1 else jnp.swapaxes(y, -1, -2)

    return call(codes, scales, amax)


@jax.jit
def _decode_values(codes, scales):
    @not_differentiable("jax_nvfp4.decode")
    def call(codes, scales):
        return _decode(codes, scales)[0]

    return call(codes, scales)


def _values(codes, dtype):
    *batch, rows, packed = codes.shape
    return [((*batch, rows, 2 * packed), dtype)]


# Block sizes below are in bytes of codes, the first operand.
_dequantize = Operation(
    "nvfp4_dequantize",
    shapes=lambda codes, scales, amax, dtype: _values(codes, dtype),
    dims=lambda codes, scales, amax, dtype: Dims(
        ("m k", "m k", "m" if amax.ndim == codes.ndim - 1 else ""), ("m k",), {"m": 1, "k": BLOCK // 2}
    ),
    static=("dtype",),
)

_decode = Operation(
    "nvfp4_decode",
    shapes=lambda codes, scales: _values(codes, jnp.bfloat16),
    dims=lambda codes, scales: Dims(("m k", "m k"), ("m k",), {"m": 1, "k": BLOCK // 2}),
)
