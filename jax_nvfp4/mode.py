"""What a custom call is told: its `Mode`, and which operands and results follow from it.

A mode is spelled once and passed whole: users say a `QuantSpec`, the operation makes a `Mode` of it, the custom
call carries it as one attribute, C++ decodes that into one struct (`ffi/include/mode.h`), and a kernel is compiled
for one. Nothing here imports JAX.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields, replace

import numpy as np

from jax_nvfp4.formats import FORMATS, NVFP4_FORMAT, SWIZZLE_ROWS, Format, ScaleLayout


class Scope(enum.IntEnum):
    """What one amax covers; leading axes are always batch."""

    TENSOR = 0
    ROW = 1


@dataclass(frozen=True)
class Direction:
    """How one output of a call is quantized.

    Attributes:
        tile: one scale per block x block tile instead of one per 1 x block run along the quantized axis.
        stochastic: round stochastically.
        swizzled: lay the scales out in 128x4 tiles.
    """

    tile: bool = False
    stochastic: bool = False
    swizzled: bool = False

    @property
    def layout(self) -> ScaleLayout:
        """The layout of its scales."""
        return "swizzled" if self.swizzled else "linear"


@dataclass(frozen=True)
class Mode:
    """Everything that a custom call is told, its dtypes and sizes apart.

    Attributes:
        format: the number format.
        scope: what one amax covers.
        row: the output, or the quantized operand, whose blocks run along the last axis; None if there is none.
        col: the one whose blocks run along the rows, stored transposed.
    """

    format: Format = NVFP4_FORMAT
    scope: Scope = Scope.TENSOR
    row: Direction | None = None
    col: Direction | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Those there are."""
        return tuple(d for d in (self.row, self.col) if d is not None)

    @property
    def stochastic(self) -> bool:
        """Whether any output is rounded stochastically."""
        return any(d.stochastic for d in self.directions)

    def attribute(self) -> dict[str, np.generic]:
        """The attribute of the custom call: the members of `Mode` in `ffi/include/mode.h`, in its types."""
        members: dict[str, np.generic] = {
            "format": np.int32(list(FORMATS).index(self.format.name)),
            "scope": np.int32(self.scope),
        }
        for name in ("row", "col"):
            direction = getattr(self, name)
            members[name] = np.bool_(direction is not None)
            for field in fields(Direction):
                members[f"{name}_{field.name}"] = np.bool_(getattr(direction or Direction(), field.name))
        return members

    def compiled(self) -> Mode:
        """The part a kernel is compiled for: without what is uniform over a launch and told at run time."""

        def told(direction):
            return direction and replace(direction, swizzled=False)

        return replace(self, scope=Scope.TENSOR, row=told(self.row), col=told(self.col))


@dataclass(frozen=True)
class Role:
    """One operand or result of a custom call.

    Attributes:
        name: what it is.
        dims: the names of its trailing dimensions, separated by blanks, as `sharding.Dims` reads them: "m" and "k"
            are the rows and columns of x, "_" is a dimension of the array's own.
    """

    name: str
    dims: str


def _quantized(mode: Mode) -> tuple[Role, ...]:
    roles = []
    if mode.row:
        roles += [Role("row_codes", "m k"), Role("row_scales", "m k")]
    if mode.col:
        roles += [Role("col_codes", "k m"), Role("col_scales", "k m")]
    return tuple(roles)


def _amax(mode: Mode) -> tuple[Role, ...]:
    return (Role("amax", "m" if mode.scope == Scope.ROW else ""),) if mode.format.has_amax else ()


def _random(mode: Mode) -> tuple[Role, ...]:
    return (Role("seed", "_"), Role("origin", "_")) if mode.stochastic else ()


_X, _Y = (Role("x", "m k"),), (Role("y", "m k"),)

VERBS = {
    "amax": lambda mode: (_X, _amax(mode)),
    "quantize": lambda mode: ((*_X, *_amax(mode), *_random(mode)), _quantized(mode)),
    "qdq": lambda mode: ((*_X, *_amax(mode)), _Y),
    "dequantize": lambda mode: ((*_quantized(mode), *_amax(mode)), _Y),
    "decode": lambda mode: (_quantized(mode), _Y),
}
"""Verb -> (mode -> its operands, its results), in order; `ffi/include/call.h` has the same table."""


def result(role: str, mode: Mode, batch: tuple, rows, columns, dtype: str) -> tuple[tuple, str]:
    """The shape and dtype of a result.

    Args:
        role: its name.
        mode: of the call.
        batch, rows, columns: the shape of x or y.
        dtype: of x or y.
    """
    if role == "amax":
        return (*batch, rows) if mode.scope == Scope.ROW else batch, "float32"
    if role == "y":
        return (*batch, rows, columns), dtype
    side, what = role.split("_")
    direction = getattr(mode, side)
    shape = (rows, columns) if side == "row" else (columns, rows)
    if what == "codes":
        return (*batch, *mode.format.codes_shape(*shape)), mode.format.code_dtype
    return (*batch, *mode.format.scale_shape(*shape, direction.layout)), mode.format.scale_dtype


def blocks(mode: Mode) -> dict[str, int]:
    """How many neighbours along "m" and "k" of x must stay together; a name that is absent is never cut.

    Swizzled bytes interleave the blocks of 128 rows, so there only multiples of 128 rows stand alone, with all columns.
    """
    together: dict[str, int] = {"m": 1, "k": 1}
    for direction, (across, along) in ((mode.row, "mk"), (mode.col, "km")):
        if direction is None:
            continue
        needed = {across: mode.format.block if direction.tile else 1, along: mode.format.block}
        if direction.swizzled:
            needed = {across: SWIZZLE_ROWS}
        together = {name: math.lcm(together[name], needed[name]) for name in together if name in needed}
    return together
