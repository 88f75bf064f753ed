"""Quantize and dequantize in one pass (fake quantization), with a straight-through gradient."""

from __future__ import annotations

from functools import partial

import jax

from jax_nvfp4.ffi import Operation
from jax_nvfp4.formats import BLOCK
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import amax as compute_amax
from jax_nvfp4.sharding import Dims
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
    if amax is None:
        amax = compute_amax(x, scope=spec.scope)
    return _straight_through(x, arguments.given_amax(amax, x, spec), spec.is_tile)


@partial(jax.jit, static_argnums=2)
def _straight_through(x, amax, tile: bool):
    @jax.custom_jvp
    def call(x, amax):
        return _qdq(x, amax, tile=tile)[0]

    @call.defjvp
    def _(primals, tangents):
        return call(*primals), tangents[0]

    return call(x, amax)


_qdq = Operation(
    "nvfp4_qdq",
    shapes=lambda x, amax, tile: [(x.shape, x.dtype)],
    dims=lambda x, amax, tile: Dims(
        ("m k", "m" if amax.ndim == x.ndim - 1 else ""), ("m k",), {"m": BLOCK if tile else 1, "k": BLOCK}
    ),
)
