"""From codes and scales back to numbers: with the tensor scale (`dequantize`) or exactly, without it (`decode`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_nvfp4.mode import Direction, Mode, Scope
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.swizzle import unswizzle_scales
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
        ValueError: the arrays of `t` do not fit together.
    """
    name = arguments.float_dtype(dtype)
    codes, scales = _linear(t)
    (y,) = _dequantize(codes, scales, t.amax, mode=_mode(t), dtype=name)
    return y if t.axis == -1 else jnp.swapaxes(y, -1, -2)


def decode(t: BlockScaled) -> jax.Array:
    """code * block scale as bfloat16, which is exact, without the tensor scale (docs/numerics.md, matrix products).

    Products of two decoded operands, multiplied by t.amax / (6 * 448) of both (6 and 448 are the largest element and
    the largest block scale), are the products of the dequantized operands with one rounding less;
    `block_scaled_matmul` computes them.

    Args:
        t: a quantized operand.

    Returns:
        bfloat16 of the shape of the operand as it is stored: (..., R, C), the blocks along the last axis.

    Raises:
        TypeError: `t` is not a BlockScaled, or differentiation.
        ValueError: the arrays of `t` do not fit together.
    """
    (y,) = _decode(*_linear(t), mode=_mode(t), dtype="bfloat16")
    return y


def _linear(t: BlockScaled) -> tuple[jax.Array, jax.Array]:
    """Codes and linear scales of `t`, as it is stored."""
    arguments.block_scaled(t)
    if t.spec.scale_layout == "linear":
        return t.codes, t.scales
    rows, packed = t.codes.shape[-2:]
    facts = t.spec.facts
    return t.codes, unswizzle_scales(t.scales, facts.scale_shape(rows, packed * facts.codes_per_byte, "linear"))


def _mode(t: BlockScaled) -> Mode:
    """What a call is told that reads `t`: as it is stored, blocks run along the last axis, and no scale is special."""
    return Mode(t.spec.facts, Scope[t.spec.scope.upper()], row=Direction())


_dequantize = Operation("dequantize")
_decode = Operation("decode")
