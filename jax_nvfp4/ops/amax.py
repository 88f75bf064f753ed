"""The largest magnitude of an operand, the first level of its scaling."""

from __future__ import annotations

from dataclasses import replace

import jax

from jax_nvfp4.mode import Direction, Mode, Scope
from jax_nvfp4.operation import Operation
from jax_nvfp4.ops import arguments
from jax_nvfp4.sharding import local_groups, max_over
from jax_nvfp4.spec import RHT, QuantSpec, ScopeName
from jax_nvfp4.tensor import brief


def amax(x, *, scope: ScopeName = "tensor", rht: RHT | None = None, dual: bool = False):
    """The largest |x| of each matrix, or of each row (docs/numerics.md section 2, G).

    Under a mesh this is the maximum over all shards, so scales do not depend on how `x` is sharded. Inside
    `shard_map` it is the shard's own; `jax_nvfp4.max_over` makes it global. It counts as a constant under
    differentiation.

    Args:
        x: (..., M, K), bfloat16, float16 or float32. Leading axes are batch.
        scope: "tensor" for one value a matrix, "row" for one a row.
        rht: the largest magnitude of the columnwise operand after this transform instead (section 3); M must be a
            multiple of 16.
        dual: both, for `quantize_dual`, from one read of x.

    Returns:
        float32, (...,) or (..., M); a pair (amax, column amax) if `dual`. NaN anywhere in the scope gives NaN, an
        empty scope gives 0.

    Raises:
        TypeError: wrong dtype.
        ValueError: rank below 2, an unknown scope, or rows that the transform cannot cover.
    """
    x = arguments.matrix(x)
    if not isinstance(scope, str) or scope not in ("tensor", "row"):
        raise ValueError(
            f"scope must be one of ('tensor', 'row'), got {brief(scope)}; jax_nvfp4.grouped_amax has one per group"
        )
    if rht is not None and not isinstance(rht, RHT):
        raise TypeError(f"rht must be a jax_nvfp4.RHT or None, got {brief(rht)}")
    return reduced(x, (), scope, rht, dual)


def reduced(x, groups: tuple[jax.Array, ...], scope: ScopeName, rht: RHT | None, dual: bool):
    """The amax of `x`, of its transform, or both; `groups` is (group_sizes,) where the scope is a group."""
    mode = Mode(scope=Scope[scope.upper()])
    if rht is not None:
        col_spec = QuantSpec(scope=scope, rht=rht)
        arguments.whole_blocks(x, col_spec, -2)
        mode = replace(mode, row=Direction() if dual else None, col=col_spec.direction())
    results = _amax(x, *groups, mode=mode)
    return (results[0], results[-1]) if dual else results[0]


def amax_of(x, spec: QuantSpec, given=None, name: str = "amax") -> jax.Array | None:
    """`given` as the amax that belongs to `x`, the amax of `x` where it is None, or None for formats without one."""
    if given is None:
        return amax(x, scope=spec.scope, rht=spec.rht) if spec.facts.has_amax else None
    return arguments.given_amax(given, x, spec, name)


def _local(bind, operands, mode, axes):
    x, *groups = operands
    results = bind(x, *(local_groups(sizes, axes, x.shape[-2]) for sizes in groups))
    reduced = "k" if mode.scope == Scope.ROW else "mk"
    over = [axis for name in reduced for axis in axes.get(name, ())]
    return [max_over(result, over) for result in results]


_amax = Operation("amax", derivative="constant", local=_local)
