"""The native libraries and the custom calls they provide: `Operation` is what every file in `ops/` calls.

An operation is one XLA custom call of one name. The CPU library and the CUDA library each register a handler for
it, so nothing above this file asks on which device it runs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from jax_nvfp4 import sharding
from jax_nvfp4.sharding import Dims, Local

LIBRARIES = {"cpu": "libjax_nvfp4_cpu.so", "cuda": "libjax_nvfp4_cuda.so"}
_DIRECTORY = Path(__file__).parent / "_native"

TARGETS: list[str] = []
"""The names of all custom calls, in the order in which the operations were defined."""


@functools.cache
def _load(platform: str) -> tuple[ctypes.CDLL | None, str]:
    try:
        return ctypes.CDLL(str(_DIRECTORY / LIBRARIES[platform])), ""
    except OSError as error:
        return None, str(error)


def library(platform: str) -> ctypes.CDLL | None:
    """The native library for "cpu" or "cuda", or None where this installation has none that loads."""
    return _load(platform)[0]


def missing(platform: str, target: str) -> str:
    """Why `target` cannot run on `platform`, and what to do; empty if it can."""
    handlers, error = _load(platform)
    if hasattr(handlers, target):
        return ""
    return (
        f"the {platform} library of jax_nvfp4 has no {target} ({error or 'it is older than this package'}): reinstall "
        "with `pip install --force-reinstall --no-deps .` on Linux"
        + (" x86-64, with JAX_NVFP4_CUDA_ARCHS not empty" if platform == "cuda" else "")
    )


def _register(target: str) -> None:
    TARGETS.append(target)
    for platform in LIBRARIES:
        if not missing(platform, target):
            handler = jax.ffi.pycapsule(getattr(library(platform), target))
            jax.ffi.register_ffi_target(target, handler, platform={"cpu": "cpu", "cuda": "CUDA"}[platform])


@dataclass(frozen=True, eq=False)
class Operation:
    """One custom call with its shape rule, its batching rule and its sharding rule.

    Every axis before the dimensions named in `dims` is batch, in all operands and results; that makes the batching
    rule the same for all: the mapped axis becomes the first batch axis.

    Attributes:
        target: the name of the custom call.
        shapes: (*operand types, **attributes) -> (shape, dtype) of each result.
        dims: (*operand types, **attributes) -> the dimensions, for the sharding rule.
        local: how one shard is computed, where that differs from the whole.
        batch: (axis size, which operands are mapped, operands with the mapped axis first) -> operands, where
            mapping changes what an operand says.
        static: the attributes that only the shape rule reads, which the custom call does not get.
    """

    target: str
    shapes: Callable[..., Sequence[tuple[tuple, Any]]]
    dims: Callable[..., Dims]
    local: Local = lambda bind, operands, axes: bind(*operands)
    batch: Callable[..., Sequence[jax.Array]] = lambda size, mapped, operands: operands
    static: tuple[str, ...] = ()
    primitive: Primitive = field(init=False)

    def __post_init__(self):
        _register(self.target)
        object.__setattr__(self, "primitive", _primitive(self.target, self.shapes, self.static))

    def __call__(self, *operands: jax.Array, **attributes) -> list[jax.Array]:
        """Apply the operation, under whatever transformations are in force."""
        results = self.shapes(*operands, **attributes)
        if 0 in operands[0].shape:
            return [jnp.zeros(shape, dtype) for shape, dtype in results]

        def bind(*arrays):
            return tuple(self.primitive.bind(*same_varying(*arrays), **attributes))

        def split(*arrays):
            shapes = [jax.ShapeDtypeStruct(*r) for r in self.shapes(*arrays, **attributes)]
            return sharding.partitioned(bind, self.local, self.dims(*arrays, **attributes), arrays, shapes)(*arrays)

        call = custom_vmap(split)

        @call.def_vmap
        def _(size, mapped, *arrays):
            batched = [a if m else jnp.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)]
            outputs = tuple(self(*self.batch(size, mapped, batched), **attributes))
            return outputs, (True,) * len(outputs)

        return list(call(*operands))


def not_differentiable(what: str) -> Callable[[Callable], Callable]:
    """Make differentiating a function of arrays a TypeError that says what to use instead."""

    def decorate(function):
        wrapped = jax.custom_jvp(function)

        @wrapped.defjvp
        def _(primals, tangents):
            raise TypeError(
                f"{what} has no derivative: codes are integers. Differentiate jax_nvfp4.dot (a quantized "
                "product with its own backward pass) or jax_nvfp4.qdq (straight-through), or wrap the argument in "
                "jax.lax.stop_gradient"
            )

        return wrapped

    return decorate


def _primitive(target: str, shapes: Callable, static: tuple[str, ...]) -> Primitive:
    primitive = Primitive(target)
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def _(*operands, **attributes):
        like = operands[0]
        replicated = functools.partial(NamedSharding, like.sharding.mesh)
        return [
            like.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False, sharding=replicated(PartitionSpec()))
            for shape, dtype in shapes(*operands, **attributes)
        ]

    @primitive.def_impl
    def _(*operands, **attributes):
        return jax.jit(functools.partial(primitive.bind, **attributes))(*operands)

    def unsupported(ctx, *operands, **attributes):
        raise NotImplementedError(
            f"{target} runs on CPU and on NVIDIA GPUs, not on {', '.join(ctx.module_context.platforms)}"
        )

    mlir.register_lowering(primitive, unsupported)
    for platform in LIBRARIES:

        def lower(ctx, *operands, platform=platform, **attributes):
            if reason := missing(platform, target):
                raise RuntimeError(reason)
            passed = {name: value for name, value in attributes.items() if name not in static}
            return jax.ffi.ffi_lowering(target)(ctx, *operands, **passed)

        mlir.register_lowering(primitive, lower, platform=platform)
    return primitive


def same_varying(*arrays: jax.Array) -> list[jax.Array]:
    """`arrays` typed as varying over the same manual mesh axes: those over which any of them varies.

    Inside `shard_map` the operands of one call must agree in this. The transpose is a sum over the added axes.
    """
    varying = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    added = [tuple(frozenset().union(*varying) - own) for own in varying]
    return [jax.lax.pcast(a, axes, to="varying") if axes else a for a, axes in zip(arrays, added, strict=True)]
