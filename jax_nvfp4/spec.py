"""How an operand is quantized (`QuantSpec`) and how a product uses it (`Recipe`).

Both are frozen and hashable, so equal specs share one trace and one compiled program. Neither imports
JAX: the oracle takes the same objects.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, get_args

from jax_nvfp4.formats import FORMATS, NVFP4_FORMAT, Block, Format, ScaleLayout
from jax_nvfp4.mode import NO_RHT, Direction, Math, Mode, Scope, Search, SearchError

ScopeName = Literal["tensor", "row", "group"]
"""What one amax covers: a whole (M, K) matrix, each of its rows, or each group of its rows. Leading axes are batch."""

MathName = Literal["exact", "fast"]
ScaleRounding = Literal["rceil", "floor"]


def _check_choices(owner: object, **choices: Any) -> None:
    """Raise unless each named field of `owner` has one of the values of its Literal."""
    for name, literal in choices.items():
        given, allowed = getattr(owner, name), get_args(literal)
        if not isinstance(given, str | int) or given not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {reprlib.repr(given)}")


@dataclass(frozen=True)
class RHT:
    """The 16-point random Hadamard transform of columnwise operands (section 3).

    Attributes:
        sign_mask: bit i is set where element i of a block is negated first; 0 for no signs.

    Raises:
        ValueError: not a 16-bit mask.
    """

    sign_mask: int = 0xD7E8

    def __post_init__(self):
        is_int = isinstance(self.sign_mask, int) and not isinstance(self.sign_mask, bool)
        if not is_int or not 0 <= self.sign_mask < 1 << 16:
            raise ValueError(f"sign_mask must be a 16-bit mask, 0 to 0xFFFF, got {self.sign_mask!r}")


ErrorName = Literal["mae", "mse", "abs_max"]
ErrorArithmetic = Literal["exact", "fp16"]
ErrorOrder = Literal["sequential", "tree"]


@dataclass(frozen=True)
class FourOverSix:
    """Per block, the scale that maps the maximum to 6 competes with the one that maps it to 4 (section 5).

    Attributes:
        error: what is compared: "mae", the sum of the differences, "mse", of their squares, or "abs_max", the
            largest difference.
        arithmetic: "exact" for differences from x, "fp16" for differences in units of the block scale, where
            quantized values are exact in float16.
        order: of the sum over 16 elements, "sequential" or "tree".
        emax: the largest block scale, 256 or 448.

    Raises:
        ValueError: another value.
    """

    error: ErrorName = "mae"
    arithmetic: ErrorArithmetic = "exact"
    order: ErrorOrder = "sequential"
    emax: int = 256

    def __post_init__(self):
        _check_choices(self, error=ErrorName, arithmetic=ErrorArithmetic, order=ErrorOrder, emax=Literal[256, 448])

    @property
    def search(self) -> Search:
        """What a call is told."""
        return Search(SearchError[self.error.upper()], self.arithmetic == "fp16", self.order == "tree")


@dataclass(frozen=True)
class QuantSpec:
    """The description of one quantized operand.

    Attributes:
        format: "nvfp4", E2M1 elements with E4M3 block scales and a float32 amax (section 2); "mxfp8" or "mxfp8_e5m2",
            E4M3 or E5M2 elements with E8M0 block scales and no amax (section 8).
        block: (1, 16) for one scale per 16 elements along the quantized axis, (16, 16) for one scale per
            aligned tile, which makes the row and the column quantization of a weight share their codes; (1, 32) for
            MXFP8. None is the first that the format has.
        scope: what one amax covers, "tensor" (the trailing matrix), "row" or "group". Row scope exists for
            (1, 16) blocks along the last axis only; group scope is what grouped operations make.
        scale_layout: "linear" or "swizzled" block scales.
        rht: the random Hadamard transform that comes before quantizing, for (1, 16) blocks along axis -2 only.
        four_over_six: how each block scale is chosen of two (section 5); None for the standard scale. Never stochastic,
            never with `rht`.
        math: "exact", or "fast" for the approximate reciprocal of section 7, which a row and column quantize with
            `rht` can ask for.
        scale_rounding: of E8M0 scales, "rceil" (up, so that no element saturates) or "floor". NVFP4 has none.

    Rounding of elements is not part of the spec: a `key` given to the operation means stochastic, none means nearest.

    Raises:
        ValueError: the combination has no definition in the numerics contract.
    """

    format: str = "nvfp4"
    block: Block = None  # type: ignore[assignment]  # that of the format
    scope: ScopeName = "tensor"
    scale_layout: ScaleLayout = "linear"
    rht: RHT | None = None
    four_over_six: FourOverSix | None = None
    scale_rounding: ScaleRounding = "rceil"
    math: MathName = "exact"

    def __post_init__(self):
        if not isinstance(self.format, str) or self.format not in FORMATS:
            raise ValueError(f"format must be one of {tuple(FORMATS)}, got {reprlib.repr(self.format)}")
        block = self.facts.blocks[0] if self.block is None else self.block
        is_pair = isinstance(block, tuple | list) and all(isinstance(n, Integral) for n in block)
        if not is_pair or tuple(block) not in self.facts.blocks:
            blocks = " or ".join(map(str, self.facts.blocks))
            raise ValueError(
                f"block of format {self.format!r} must be {blocks}, rows and columns that share a scale, "
                f"got {reprlib.repr(block)}"
            )
        object.__setattr__(self, "block", tuple(map(int, block)))
        _check_choices(self, scope=ScopeName, scale_layout=ScaleLayout, math=MathName, scale_rounding=ScaleRounding)
        for name, kind in (("rht", RHT), ("four_over_six", FourOverSix)):
            given = getattr(self, name)
            if not isinstance(given, kind | None):
                raise ValueError(f"{name} must be a jax_nvfp4.{kind.__name__} or None, got {reprlib.repr(given)}")
        if self.is_tile and self.scope != "tensor":
            raise ValueError(
                f"a {self.block} block spans {block[0]} rows, so its amax cannot be per {self.scope}: "
                "use scope='tensor'"
            )
        if not self.facts.has_amax and self.scope == "row":
            raise ValueError(f"format {self.format!r} has no amax, so none per row: use scope='tensor'")
        if not self.facts.has_amax and (self.rht is not None or self.four_over_six is not None):
            raise ValueError(f"rht and four_over_six belong to NVFP4, got format {self.format!r}: leave them out")
        if self.rht is not None and (self.is_tile or self.scope == "row"):
            raise ValueError("the Hadamard transform mixes 16 rows: it needs (1, 16) blocks and no amax per row")
        if self.rht is not None and self.four_over_six is not None:
            raise ValueError("four-over-six is not defined with a Hadamard transform (section 5): leave one out")
        if self.math == "fast" and self.rht is None:
            raise ValueError("fast math exists for the Hadamard transform only (section 7): give rht=RHT() too")
        if self.facts.has_amax and self.scale_rounding != "rceil":
            raise ValueError(
                f"scale_rounding belongs to E8M0 scales, which {self.format!r} does not have: leave it out"
            )

    @property
    def facts(self) -> Format:
        """The facts about its format."""
        return FORMATS[self.format]

    @property
    def is_tile(self) -> bool:
        """Whether one block scale covers a square tile."""
        return self.block[0] > 1

    @property
    def emax(self) -> float:
        """The largest block scale (Emax of section 2)."""
        return self.facts.scale_max if self.four_over_six is None else float(self.four_over_six.emax)

    def mode(self, axis: int = -1, *, stochastic: bool = False) -> Mode:
        """What a call is told that has one output, or one quantized operand, with blocks along `axis`."""
        row, col = (self.direction(stochastic) if axis == a else None for a in (-1, -2))
        return replace(self.scaling, row=row, col=col)

    @property
    def scaling(self) -> Mode:
        """What a call is told about its scales, whatever its outputs."""
        search = Search() if self.four_over_six is None else self.four_over_six.search
        floor = self.scale_rounding == "floor"
        scope, math = Scope[self.scope.upper()], Math[self.math.upper()]
        return Mode(self.facts, scope, math, emax=self.emax, search=search, scale_floor=floor)

    def direction(self, stochastic: bool = False) -> Direction:
        """What a call is told about one of its outputs."""
        rht = NO_RHT if self.rht is None else self.rht.sign_mask
        return Direction(self.is_tile, stochastic, self.scale_layout == "swizzled", rht)


NVFP4 = QuantSpec()
NVFP4_2D = QuantSpec(block=NVFP4_FORMAT.blocks[1])
MXFP8 = QuantSpec(format="mxfp8")


@dataclass(frozen=True)
class Recipe:
    """Which operands of `dot` are quantized, and how (the table is in `jax_nvfp4/products/dot.py`).

    Attributes:
        x, w, grad: the specs of the activation, of the weight and of the gradient of the output. None keeps an
            operand in its own dtype. Either all three are given, and all three products of a training step are
            quantized, or `w` alone (quantization-aware training: the weight is fake-quantized, the gradient
            straight through).
        rht: the random Hadamard transform of both operands of the weight gradient; None for none. Both must have the
            same, so it belongs to the recipe. On in `NVFP4_TRAINING`: dataclasses.replace(NVFP4_TRAINING, rht=None)
            leaves it out.

    Raises:
        ValueError: another combination.
    """

    x: QuantSpec | None
    w: QuantSpec
    grad: QuantSpec | None
    rht: RHT | None = None

    def __post_init__(self):
        for name, spec in (("x", self.x), ("w", self.w), ("grad", self.grad)):
            if spec is not None and not isinstance(spec, QuantSpec):
                raise TypeError(f"{name} must be a QuantSpec such as jax_nvfp4.NVFP4, or None, got {spec!r}")
        if self.w is None:
            raise ValueError(
                "a recipe quantizes w at least, as NVFP4_QAT does (NVFP4_TRAINING all three): use jnp.einsum or "
                "jax.lax.dot_general for a product that quantizes nothing"
            )
        if (self.x is None) != (self.grad is None):
            raise ValueError("a recipe quantizes x and grad both or neither (w alone is quantization-aware training)")
        if self.is_training and self.w.facts.has_tiles and not self.w.is_tile:
            raise ValueError(
                "a training recipe needs 16x16 blocks for w (NVFP4_2D): both directions of the weight must share codes"
            )
        for name, spec in (("x", self.x), ("grad", self.grad)):
            if spec is not None and spec.is_tile:
                raise ValueError(
                    f"{name} cannot have {spec.block} blocks: they need a multiple of {spec.block[0]} tokens and are "
                    f"never rounded stochastically. Use {name}=NVFP4, with 16x16 blocks for w only"
                )
        specs = [s for s in (self.x, self.w, self.grad) if s is not None]
        if len({s.format for s in specs}) > 1:
            raise ValueError(f"a recipe has one format, got {', '.join(s.format for s in specs)}")
        if any(s.rht is not None for s in specs):
            raise ValueError(
                "both operands of the weight gradient share one transform: give it to the recipe, rht=RHT()"
            )
        if self.grad is not None and self.grad.four_over_six is not None:
            raise ValueError("gradients are rounded stochastically, which four-over-six is not: use grad=NVFP4")
        if any(s is not None and s.scale_layout != "linear" for s in (self.x, self.w, self.grad)):
            raise ValueError("a recipe uses linear scales: how a product lays them out is its own affair")
        if any(s is not None and s.scope != "tensor" for s in (self.x, self.grad)):
            raise ValueError("a training recipe uses scope='tensor': the columnwise operands have no rows to scale by")
        if self.rht is not None and not isinstance(self.rht, RHT):
            raise ValueError(f"rht must be a jax_nvfp4.RHT or None, got {self.rht!r}")
        if self.rht is not None and not self.is_training:
            raise ValueError("rht belongs to the weight gradient of a training recipe: leave it out")
        if self.rht is not None and not self.w.facts.has_amax:
            raise ValueError(f"rht belongs to NVFP4, got a recipe of format {self.w.format!r}: leave it out")

    def both_ways(self, operand: Literal["x", "grad"]) -> tuple[QuantSpec, QuantSpec]:
        """The specs of an operand of a training recipe as it is quantized along its rows, and along its columns."""
        spec = self.x if operand == "x" else self.grad
        if spec is None:
            raise ValueError(f"this recipe does not quantize {operand}: it is not one of training")
        return spec, replace(spec, rht=self.rht)

    @property
    def is_training(self) -> bool:
        """Whether all three products are quantized, not only the weight."""
        return self.x is not None


NVFP4_TRAINING = Recipe(x=NVFP4, w=NVFP4_2D, grad=NVFP4, rht=RHT())
NVFP4_QAT = Recipe(x=None, w=NVFP4, grad=None)
MXFP8_TRAINING = Recipe(x=MXFP8, w=MXFP8, grad=MXFP8)
