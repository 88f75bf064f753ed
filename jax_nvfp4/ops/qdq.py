"""Quantize and dequantize in one pass (fake quantization), with a straight-through gradient."""

from __future__ import annotations

import jax

from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax_of
from jax_nvfp4.spec import NVFP4, QuantSpec


def qdq(x, spec: QuantSpec = NVFP4, *, amax=None) -> jax.Array:
    """`dequantize(quantize(x, spec))` bit for bit, without writing codes (docs/numerics.md section 2, step 7).

    The derivative with respect to `x` is the identity (straight-through); `amax` counts as a constant.

    Args:
        x: (..., M, K), bfloat16, float16 or float32, K (for 16x16 blocks M too) a multiple of 16.
        spec: block shape and amax scope. Blocks run along the last axis.
        amax: float32, (...,) or (..., M) for scope "row"; computed from `x` when it is None.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: wrong dtype of `x` or `amax`.
        ValueError: wrong rank or shape, or an axis that does not hold whole blocks.
    """
    x, spec = arguments.matrix(x), arguments.quant_spec(spec)
    arguments.whole_blocks(x, spec, -1)
    scale = amax_of(x, spec, amax)
    (y,) = _qdq(x, *([] if scale is None else [scale]), mode=spec.mode())
    return y


_qdq = Operation("qdq", derivative="straight-through")
