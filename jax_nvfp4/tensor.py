"""`BlockScaled`: a quantized array as a pytree that says what it holds."""

from __future__ import annotations

import math
import operator
import reprlib
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from jax_nvfp4.mode import VERBS, result
from jax_nvfp4.spec import NVFP4, QuantSpec

LEAVES = ("codes", "scales", "amax", "group_sizes")
"""The fields of a `BlockScaled` that hold arrays."""


@dataclass(frozen=True, eq=False, repr=False)
class BlockScaled:
    """A quantized operand of shape (..., M, K): codes, block scales and amax.

    Made from arrays (or from anything with a shape and a dtype), it is checked: they fit each other and `spec`.
    JAX puts other things in their places, such as None, shardings or axes of `vmap`, and so may you: a container
    without any array is not checked, and neither is one that `jax.tree` functions make. Operations and `save` check
    what they are given.

    Two containers are equal if they are one object, and a container is hashed as such: compare the arrays to know
    whether they hold the same. The names of the leaves in a pytree path say what the bytes mean (see
    `tree_flatten_with_keys`), so that a checkpoint is not read as something that it is not.

    Attributes:
        codes: for NVFP4 uint8, two E2M1 codes a byte, low nibble first: (..., M, K/2), or (..., K, M/2) when `axis` is
            -2; for MXFP8 float8 elements, (..., M, K) or (..., K, M).
        scales: one per block of codes, float8_e4m3fn (MXFP8: float8_e8m0fnu), laid out as `spec.scale_layout` says.
        amax: float32, (...,), or (..., M) where `spec.scope` is "row", or (..., E) where it is "group"; None for
            formats without one.
        spec: how it was quantized (static).
        axis: which axis of the operand the blocks run along, -1 or -2 (static). Blocks along -2 are stored
            transposed, so that in memory blocks are always contiguous.
        group_sizes: int32 (..., E), the rows of each group where `spec.scope` is "group", else None.

    Raises:
        TypeError: a wrong dtype, `spec` or `axis` of another type, or arrays beside other things.
        ValueError: shapes that do not fit each other or `spec`, or another axis.
    """

    codes: jax.Array
    scales: jax.Array
    amax: Any
    spec: QuantSpec
    axis: int
    group_sizes: Any = None

    def __post_init__(self):
        if not isinstance(self.spec, QuantSpec):
            raise TypeError(f"spec must be a QuantSpec such as jax_nvfp4.NVFP4, got {brief(self.spec)}")
        object.__setattr__(self, "axis", _static_axis(self.axis, self.spec))
        if any(is_array(getattr(self, name)) for name in LEAVES):
            self.check()

    def check(self) -> None:
        """Raise unless codes, scales and amax are arrays that fit each other and `spec` (see the class)."""
        mode = self.spec.mode()  # as it is stored, blocks run along the last axis
        roles = dict(
            zip(("codes", "scales", "amax"), (role.name for role in VERBS["dequantize"](mode)[0]), strict=False)
        )
        if self.spec.scope == "group":
            roles["group_sizes"] = "group_sizes"
        for name, leaf in zip(LEAVES, self._leaves(), strict=True):
            is_held = name in roles
            if is_held and not is_array(leaf) or not is_held and leaf is not None:
                raise TypeError(
                    f"{name} of a BlockScaled of {_words(self.spec)} must be {'an array' if is_held else None}, "
                    f"got {brief(leaf)}: jax_nvfp4.quantize makes a whole one"
                )
        if self.ndim < 2:
            raise ValueError(f"codes must have rank >= 2, (..., rows, bytes), got shape {self.codes.shape}")
        *batch, rows, columns = self._stored_shape()
        for size, block in zip((rows, columns), self.spec.block, strict=True):
            if size % block != 0:
                raise ValueError(
                    f"codes of shape {self.codes.shape} are {rows} rows of {columns} elements, which is not a whole "
                    f"number of {self.spec.block} blocks: pad the operand with jax_nvfp4.pad_to_blocks, then quantize"
                )
        groups = 0 if self.group_sizes is None else self.group_sizes.shape[-1]
        for name, role in roles.items():
            shape, dtype = result(role, mode, tuple(batch), rows, columns, groups, "")
            array = getattr(self, name)
            if _dtype_name(array) != dtype:
                way = (
                    f"cast it with .astype({dtype!r})"
                    if name in ("amax", "group_sizes")
                    else f"if it is the same bytes, .view({dtype!r})"
                )
                raise TypeError(f"{name} of {_words(self.spec)} must be {dtype}, got {_dtype_name(array)}: {way}")
            if tuple(array.shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape} beside codes of shape {tuple(self.codes.shape)} "
                    f"({_words(self.spec)}, axis {self.axis}), got {tuple(array.shape)}"
                )

    def _stored_shape(self) -> tuple[int, ...]:
        *batch, rows, packed = self.codes.shape
        return *batch, rows, packed * self.spec.facts.codes_per_byte

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operand that was quantized."""
        *batch, rows, columns = self._stored_shape()
        return (*batch, rows, columns) if self.axis == -1 else (*batch, columns, rows)

    @property
    def ndim(self) -> int:
        """The rank of the operand that was quantized."""
        return len(self.codes.shape)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of one element as it is quantized, float4_e2m1fn for NVFP4, however codes are stored."""
        return jax.numpy.dtype(self.spec.facts.element_dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and amax together."""
        return sum(math.prod(a.shape) * jax.numpy.dtype(a.dtype).itemsize for a in self._leaves() if a is not None)

    @property
    def T(self) -> BlockScaled:
        """The transpose of the last two axes. The same bytes: only the axis the blocks run along is renamed.

        Raises:
            ValueError: the spec has an amax per row, and the transpose would have one per column.
        """
        return replace(self, axis=-3 - self.axis)

    def __repr__(self) -> str:
        held = ((name, getattr(self, name)) for name in LEAVES)
        leaves = ", ".join(f"{name}={brief(leaf)}" for name, leaf in held if leaf is not None)
        return f"BlockScaled({leaves}, spec={self.spec}, axis={self.axis})"

    def __array__(self, dtype=None, copy=None) -> NoReturn:
        raise TypeError(_NOT_AN_ARRAY)

    def __jax_array__(self) -> NoReturn:
        raise TypeError(_NOT_AN_ARRAY)

    def tree_flatten_with_keys(self) -> tuple[tuple, tuple[QuantSpec, int]]:
        """The leaves, each under a name that says what its bytes mean, and what is static.

        A checkpoint stores leaves by name and knows nothing of `spec` and `axis`. Codes stored transposed are
        "codes_T", swizzled scales "scales_swizzled", an amax per row "amax_row", and other formats than NVFP4 add
        their name: what was saved in one meaning is not found by a target of another, instead of read wrongly.
        """
        form = "" if self.spec.format == NVFP4.format else f"_{self.spec.format}"
        transposed = "_T" if self.axis == -2 else ""
        names = (
            f"codes{form}{transposed}",
            f"scales{form}{transposed}" + ("_swizzled" if self.spec.scale_layout == "swizzled" else ""),
            "amax" if self.spec.scope == "tensor" else f"amax_{self.spec.scope}",
            "group_sizes",
        )
        children = tuple(zip(map(GetAttrKey, names), self._leaves(), strict=True))
        return children, (self.spec, self.axis)

    def _leaves(self) -> tuple[Any, ...]:
        return self.codes, self.scales, self.amax, self.group_sizes

    @classmethod
    def tree_unflatten(cls, static: tuple[QuantSpec, int], leaves) -> BlockScaled:
        """A container of any leaves, unchecked: JAX passes placeholders."""
        t = object.__new__(cls)
        for name, value in zip((*LEAVES, "spec", "axis"), (*leaves, *static), strict=True):
            object.__setattr__(t, name, value)
        return t


jax.tree_util.register_pytree_with_keys(
    BlockScaled,
    BlockScaled.tree_flatten_with_keys,
    BlockScaled.tree_unflatten,
    lambda t: (t._leaves(), (t.spec, t.axis)),
)

_NOT_AN_ARRAY = (
    "a BlockScaled is not an array but codes, scales and an amax: jax_nvfp4.dequantize gives the numbers it stands "
    "for, and its codes, scales and amax are arrays"
)


def _static_axis(axis, spec: QuantSpec) -> int:
    """`axis` as -1 or -2, if blocks of `spec` can run along it."""
    try:
        index = None if isinstance(axis, bool) else operator.index(axis)
    except TypeError:
        index = None
    if index is None:
        raise TypeError(f"axis of a BlockScaled must be the int -1 or -2, got {brief(axis)}")
    if index not in (-1, -2):
        raise ValueError(
            f"axis of a BlockScaled must be -1 or -2, counted from the end because vmap adds and removes leading axes, "
            f"got {axis}"
        )
    if index == -2 and spec.scope == "row":
        raise ValueError(
            "scope='row' is one amax per row, so its blocks run along axis -1, got axis -2: transpose the dequantized "
            "array, or quantize with scope='tensor'"
        )
    return index


def is_array(value) -> bool:
    """Whether `value` has a shape and a dtype: an array, a tracer or a jax.ShapeDtypeStruct."""
    return isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype")


def _dtype_name(array) -> str:
    return getattr(array.dtype, "name", str(array.dtype))


def _words(spec: QuantSpec) -> str:
    rows, columns = spec.block
    return f"{spec.format}, {rows}x{columns} blocks, scope {spec.scope!r}, {spec.scale_layout} scales"


def brief(value) -> str:
    """`value` in few characters: an array as dtype[shape]."""
    if not is_array(value) or isinstance(value, np.generic | BlockScaled):
        return reprlib.repr(value) if not isinstance(value, BlockScaled) else "a BlockScaled"
    return f"{_dtype_name(value)}[{','.join(map(str, value.shape))}]"
