"""`Operation`: one custom call with its shape, differentiation, batching and sharding rules.

To add one: a verb in `mode.VERBS` (its operands and results), an `Operation` in a file of `ops/` beside its public
function, the same verb in `ffi/include/call.h`, and a handler a platform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from jax_nvfp4 import ffi, sharding
from jax_nvfp4.mode import VERBS, Mode, blocks, result
from jax_nvfp4.sharding import Axes, Dims, same_varying

Derivative = Literal["refused", "constant", "straight-through"]


@dataclass(frozen=True, eq=False)
class Operation:
    """One custom call.

    Every axis before the dimensions that `mode.VERBS` names is batch, in all operands and results; that makes the
    batching rule the same for all: the mapped axis becomes the first batch axis.

    Attributes:
        verb: the custom call is "nvfp4_<verb>", the public function of that name is what errors mention.
        derivative: "refused" is a TypeError, "constant" has no derivative with respect to any operand,
            "straight-through" passes the tangent of the first operand on.
        local: (bind, operands, mode, axes) -> results: how one shard is computed, where that differs from the whole.
        batch: (axis size, which operands are mapped, operands with the mapped axis first, mode) -> operands, where
            mapping changes what an operand says.
    """

    verb: str
    derivative: Derivative = "refused"
    local: Callable[[Callable, Sequence[jax.Array], Mode, Axes], Sequence[jax.Array]] = (
        lambda bind, operands, mode, axes: bind(*operands)
    )
    batch: Callable[[int, Sequence[bool], Sequence[jax.Array], Mode], Sequence[jax.Array]] = (
        lambda size, mapped, operands, mode: operands
    )
    primitive: Primitive = field(init=False)

    def __post_init__(self):
        ffi.register(self.target)
        object.__setattr__(self, "primitive", _primitive(self))

    @property
    def target(self) -> str:
        """The name of the custom call."""
        return ffi.PREFIX + self.verb

    def __call__(self, *operands: jax.Array, mode: Mode, dtype: str = "") -> list[jax.Array]:
        """Apply the operation, under whatever transformations are in force.

        Args:
            operands: as `mode.VERBS` lists them.
            mode: what the custom call is told.
            dtype: of y, where that is not the dtype of x.
        """
        return _apply(self, mode, dtype, *operands)

    def results(self, operands: Sequence, mode: Mode, dtype: str) -> list[tuple[tuple, str]]:
        """The shape rule: shape and dtype of each result, from the types of the operands."""
        expected, results = VERBS[self.verb](mode)
        by_role = {role.name: operand for role, operand in zip(expected, operands, strict=True)}
        *batch, rows, columns = operands[0].shape
        if "x" not in by_role:
            columns *= mode.format.codes_per_byte
        groups = by_role["group_sizes"].shape[-1] if "group_sizes" in by_role else 0
        dtype = dtype or operands[0].dtype.name
        return [result(role.name, mode, tuple(batch), rows, columns, groups, dtype) for role in results]

    def dims(self, mode: Mode) -> Dims:
        """The dimensions, for the sharding rule."""
        operands, results = VERBS[self.verb](mode)
        together = blocks(mode)
        if operands[0].name == "row_codes" and "k" in together:
            together["k"] //= mode.format.codes_per_byte
        return Dims(tuple(role.dims for role in operands), tuple(role.dims for role in results), together)

    def _transformable(self, mode: Mode, dtype: str, *operands: jax.Array) -> list[jax.Array]:
        shapes = self.results(operands, mode, dtype)
        if 0 in operands[0].shape:
            return [jnp.zeros(*shape) for shape in shapes]

        def bind(*arrays):
            return tuple(self.primitive.bind(*same_varying(*arrays), mode=mode, dtype=dtype))

        def split(*arrays):
            shapes = [jax.ShapeDtypeStruct(*r) for r in self.results(arrays, mode, dtype)]

            def local(bind, operands, axes):
                return self.local(bind, operands, mode, axes)

            return sharding.partitioned(bind, local, self.dims(mode), arrays, shapes)(*arrays)

        call = custom_vmap(split)

        @call.def_vmap
        def _(size, mapped, *arrays):
            batched = [a if m else jnp.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)]
            outputs = tuple(self(*self.batch(size, mapped, batched, mode), mode=mode, dtype=dtype))
            return outputs, (True,) * len(outputs)

        return list(call(*operands))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _apply(operation: Operation, mode: Mode, dtype: str, *operands: jax.Array) -> list[jax.Array]:
    if operation.derivative == "constant":
        return operation._transformable(mode, dtype, *map(jax.lax.stop_gradient, operands))

    call = jax.custom_jvp(partial(operation._transformable, mode, dtype))

    @call.defjvp
    def _(primals, tangents):
        if operation.derivative == "straight-through":
            return call(*primals), [tangents[0]]
        raise TypeError(
            f"jax_nvfp4.{operation.verb} has no derivative: codes are integers. Differentiate jax_nvfp4.dot (a "
            "quantized product with its own backward pass) or jax_nvfp4.qdq (straight-through), or wrap the argument "
            "in jax.lax.stop_gradient"
        )

    return call(*operands)


def _primitive(operation: Operation) -> Primitive:
    target = operation.target
    primitive = Primitive(target)
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def _(*operands, mode, dtype):
        like = operands[0]
        replicated = partial(NamedSharding, like.sharding.mesh)
        return [
            like.update(shape=shape, dtype=jnp.dtype(name), weak_type=False, sharding=replicated(PartitionSpec()))
            for shape, name in operation.results(operands, mode, dtype)
        ]

    @primitive.def_impl
    def _(*operands, **parameters):
        with jax.disable_jit(False):  # a primitive runs compiled, also where a debugger has switched jit off
            return jax.jit(partial(primitive.bind, **parameters))(*operands)

    def unsupported(ctx, *operands, **parameters):
        raise NotImplementedError(
            f"{target} runs on CPU and on NVIDIA GPUs, not on {', '.join(ctx.module_context.platforms)}"
        )

    mlir.register_lowering(primitive, unsupported)
    for platform in ffi.LIBRARIES:

        def lower(ctx, *operands, mode, dtype, platform=platform):
            if reason := ffi.missing(platform, target):
                raise RuntimeError(reason)
            return jax.ffi.ffi_lowering(target)(ctx, *operands, mode=mode.attribute())

        mlir.register_lowering(primitive, lower, platform=platform)
    return primitive
