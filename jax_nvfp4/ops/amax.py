"""The largest magnitude of an operand, the first level of its scaling."""

from __future__ import annotations

from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp

from jax_nvfp4.ffi import Operation
from jax_nvfp4.formats import Scope
from jax_nvfp4.ops import arguments
from jax_nvfp4.sharding import Dims, max_over


def amax(x, *, scope: Scope = "tensor") -> jax.Array:
    """The largest |x| of each matrix, or of each row (docs/numerics.md section 2, G).

    Under a mesh this is the maximum over all shards, so scales do not depend on how `x` is sharded. Inside
    `shard_map` it is the shard's own; `jax_nvfp4.max_over` makes it global. It counts as a constant under
    differentiation.

    Args:
        x: (..., M, K), bfloat16, float16 or float32. Leading axes are batch.
        scope: "tensor" for one value a matrix, "row" for one a row.

    Returns:
        float32, (...,) or (..., M). NaN anywhere in the scope gives NaN, an empty scope gives 0.

    Raises:
        TypeError: wrong dtype.
        ValueError: rank below 2, or an unknown scope.
    """
    x = arguments.matrix(x)
    if scope not in get_args(Scope):
        raise ValueError(f"scope must be one of {get_args(Scope)}, got {scope!r}")
    return _amax(jax.lax.stop_gradient(x), scope == "row")


@partial(jax.jit, static_argnums=1)
def _amax(x, row_scope: bool):
    (result,) = _operation(x, row_scope=row_scope)
    return result


def _local(bind, operands, axes):
    (result,) = bind(*operands)
    reduced = "k" if result.ndim == operands[0].ndim - 1 else "mk"
    return [max_over(result, [axis for name in reduced for axis in axes.get(name, ())])]


_operation = Operation(
    "nvfp4_amax",
    shapes=lambda x, row_scope: [(x.shape[:-1] if row_scope else x.shape[:-2], jnp.float32)],
    dims=lambda x, row_scope: Dims(("m k",), ("m" if row_scope else "",), {"m": 1, "k": 1}),
    local=_local,
)
