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
    """What one amax covers: a matrix, one of its rows, or a group of its rows. Leading axes are always batch."""

    TENSOR = 0
    ROW = 1
    GROUP = 2


class Math(enum.IntEnum):
    """How the reciprocal of section 2 step 5 is made and whether Hadamard results are rounded first (section 7)."""

    EXACT = 0
    FAST = 1


class SearchError(enum.IntEnum):
    """How four-over-six measures the error of a scale; `NONE` is the standard scale (section 5)."""

    NONE = 0
    MAE = 1
    MSE = 2
    ABS_MAX = 3


@dataclass(frozen=True)
class Search:
    """How the scale of a block is chosen.

    Attributes:
        error: the measure.
        fp16: in units of the block scale, where the values are exact in float16, instead of in units of x.
        tree: sum in the order of a shuffle instead of one element after the other.
    """

    error: SearchError = SearchError.NONE
    fp16: bool = False
    tree: bool = False


NO_RHT = -1


@dataclass(frozen=True)
class Direction:
    """How one output of a call is quantized.

    Attributes:
        tile: one scale per block x block tile instead of one per 1 x block run along the quantized axis.
        stochastic: round stochastically.
        swizzled: lay the scales out in 128x4 tiles.
        rht: the sign mask of the random Hadamard transform that comes first, `NO_RHT` for none.
    """

    tile: bool = False
    stochastic: bool = False
    swizzled: bool = False
    rht: int = NO_RHT

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
        math: exact or fast.
        zero_tail: whether the rows of x past the last group get codes and scales, which are zero.
        emax: the largest block scale.
        search: how block scales are chosen.
        scale_floor: whether a power-of-two scale is that of the block's largest binade, instead of the next one above
            its largest value.
    """

    format: Format = NVFP4_FORMAT
    scope: Scope = Scope.TENSOR
    math: Math = Math.EXACT
    zero_tail: bool = True
    emax: float = NVFP4_FORMAT.scale_max
    search: Search = Search()
    scale_floor: bool = False
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

    @property
    def is_dual(self) -> bool:
        """Whether there are two outputs with scales of their own, and so an amax each."""
        return len(self.directions) == 2 and not self.directions[0].tile

    def attribute(self) -> dict[str, np.generic]:
        """The attribute of the custom call: the members of `Mode` in `ffi/include/mode.h`, in its types."""
        members: dict[str, np.generic] = {
            "format": np.int32(list(FORMATS).index(self.format.name)),
            "scope": np.int32(self.scope),
            "math": np.int32(self.math),
            "zero_tail": np.bool_(self.zero_tail),
            "emax": np.float32(self.emax),
            **_members("search", self.search),
            "scale_floor": np.bool_(self.scale_floor),
        }
        for name in ("row", "col"):
            direction = getattr(self, name)
            members[name] = np.bool_(direction is not None)
            members |= _members(name, direction or Direction())
        return members

    def compiled(self) -> Mode:
        """The part a kernel is compiled for: without what is uniform over a launch and told at run time."""

        def told(direction):
            return direction and replace(direction, swizzled=False, rht=min(direction.rht, 0))

        scope = Scope.GROUP if self.scope == Scope.GROUP else Scope.TENSOR
        return replace(self, scope=scope, zero_tail=True, emax=Mode.emax, row=told(self.row), col=told(self.col))


def _members(name: str, part: Search | Direction) -> dict[str, np.generic]:
    """The members of one part of a mode."""
    values = {f"{name}_{field.name}": getattr(part, field.name) for field in fields(part)}
    return {key: np.bool_(value) if isinstance(value, bool) else np.int32(value) for key, value in values.items()}


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
    """One amax, or one a direction where both have 1 x block blocks."""
    if not mode.format.has_amax:
        return ()
    dims = "m" if mode.scope == Scope.ROW else "_" if mode.scope == Scope.GROUP else ""
    return tuple(Role(name, dims) for name in ("amax", "col_amax")[: 2 if mode.is_dual else 1])


def _groups(mode: Mode) -> tuple[Role, ...]:
    return (Role("group_sizes", "_"),) if mode.scope == Scope.GROUP else ()


def _random(mode: Mode) -> tuple[Role, ...]:
    return (Role("seed", "_"), Role("origin", "_")) if mode.stochastic else ()


_X, _Y = (Role("x", "m k"),), (Role("y", "m k"),)

VERBS = {
    "amax": lambda mode: ((*_X, *_groups(mode)), _amax(mode)),
    "quantize": lambda mode: ((*_X, *_amax(mode), *_groups(mode), *_random(mode)), _quantized(mode)),
    "qdq": lambda mode: ((*_X, *_amax(mode)), _Y),
    "dequantize": lambda mode: ((*_quantized(mode), *_amax(mode)), _Y),
    "decode": lambda mode: (_quantized(mode), _Y),
}
"""Verb -> (mode -> its operands, its results), in order; `ffi/include/call.h` has the same table."""


def result(role: str, mode: Mode, batch: tuple, rows, columns, groups: int, dtype: str) -> tuple[tuple, str]:
    """The shape and dtype of a result.

    Args:
        role: its name.
        mode: of the call.
        batch, rows, columns: the shape of x or y.
        groups: how many there are, where the scope is a group.
        dtype: of x or y.
    """
    if role.endswith("amax"):
        return (*batch, *{Scope.TENSOR: (), Scope.ROW: (rows,), Scope.GROUP: (groups,)}[mode.scope]), "float32"
    if role == "group_sizes":
        return (*batch, groups), "int32"
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
