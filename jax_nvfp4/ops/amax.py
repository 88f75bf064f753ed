"""The largest magnitude of an operand, the first level of its scaling."""

from __future__ import annotations

from typing import get_args

import jax

from jax_nvfp4.mode import Mode, Scope
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.sharding import max_over
from jax_nvfp4.spec import QuantSpec, ScopeName
from jax_nvfp4.tensor import brief


def amax(x, *, scope: ScopeName = "tensor") -> jax.Array:
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
    if not isinstance(scope, str) or scope not in get_args(ScopeName):
        raise ValueError(f"scope must be one of {get_args(ScopeName)}, got {brief(scope)}")
    (result,) = _amax(x, mode=Mode(scope=Scope[scope.upper()]))
    return result


def amax_of(x, spec: QuantSpec, given=None, name: str = "amax") -> jax.Array:
    """`given` as the amax that belongs to `x`, or the amax of `x` where it is None."""
    return amax(x, scope=spec.scope) if given is None else arguments.given_amax(given, x, spec, name)


def _local(bind, operands, mode, axes):
    (result,) = bind(*operands)
    reduced = "k" if mode.scope == Scope.ROW else "mk"
    return [max_over(result, [axis for name in reduced for axis in axes.get(name, ())])]


_amax = Operation("amax", derivative="constant", local=_local)
