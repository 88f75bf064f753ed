"""From codes and scales back to numbers: with the tensor scale (`dequantize`) or exactly, without it (`decode`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_nvfp4.mode import Direction, Mode, Scope
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.swizzle import unswizzle_group_scales, unswizzle_scales
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
    if t.amax is None:
        (y,) = _dequantize(codes, scales, mode=_mode(t), dtype=name)
    elif t.spec.scope == "group":
        y = _dequantize_groups(t, codes, scales, name)
    else:
        (y,) = _dequantize(codes, scales, t.amax, mode=_mode(t, Scope[t.spec.scope.upper()]), dtype=name)
    return y if t.axis == -1 else jnp.swapaxes(y, -1, -2)


def decode(t: BlockScaled) -> jax.Array:
    """code * block scale as bfloat16, which is exact, without the tensor scale (docs/numerics.md, matrix products).

    Products of two decoded NVFP4 operands, multiplied by t.amax / (6 * 448) of both (6 and 448 are the largest element
    and the largest block scale), are the products of the dequantized operands with one rounding less;
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
    shape = facts.scale_shape(rows, packed * facts.codes_per_byte, "linear")
    if t.spec.scope == "group" and t.axis == -2:
        return t.codes, unswizzle_group_scales(t.scales, shape, t.group_sizes // facts.block)
    return t.codes, unswizzle_scales(t.scales, shape)


def _mode(t: BlockScaled, scope: Scope = Scope.TENSOR) -> Mode:
    """What a call is told that reads `t`: as it is stored, blocks run along the last axis, and no scale is special."""
    return Mode(t.spec.facts, scope, emax=t.spec.emax, row=Direction())


def _dequantize_groups(t: BlockScaled, codes, scales, dtype: str) -> jax.Array:
    """Every block is a row of its own, with the amax of its group; capacity has amax 0."""
    *batch, rows, blocks = scales.shape
    ends = jnp.cumsum(t.group_sizes, axis=-1)[..., None, :]
    count, step = (rows, 1) if t.axis == -1 else (blocks, t.spec.facts.block)
    packed = jnp.arange(count, dtype=jnp.int32) * step
    group = jnp.sum(packed[:, None] >= ends, axis=-1, dtype=jnp.int32)
    amax = jnp.concatenate([t.amax, jnp.zeros((*batch, 1), jnp.float32)], axis=-1)
    of_packed = jnp.take_along_axis(amax, group, axis=-1)
    of_block = jnp.broadcast_to(of_packed[..., :, None] if t.axis == -1 else of_packed[..., None, :], scales.shape)
    flat = (*batch, rows * blocks)
    (y,) = _dequantize(
        codes.reshape(*flat, -1),
        scales.reshape(*flat, 1),
        of_block.reshape(flat),
        mode=_mode(t, Scope.ROW),
        dtype=dtype,
    )
    return y.reshape(*batch, rows, -1)


_dequantize = Operation("dequantize")
_decode = Operation("decode")
