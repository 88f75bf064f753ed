"""How an operand is quantized (`QuantSpec`) and how a product uses it (`Recipe`).

Both are frozen and hashable, so equal specs share one trace and one compiled program. Neither imports
JAX: the oracle takes the same objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from jax_nvfp4.formats import FORMATS, NVFP4_FORMAT, Block, Format, ScaleLayout
from jax_nvfp4.mode import NO_RHT, Direction, Math, Mode, Scope, Search, SearchError

ScopeName = Literal["tensor", "row", "group"]
"""What one amax covers: a whole (M, K) matrix, each of its rows, or each group of its rows. Leading axes are batch."""

MathName = Literal["exact", "fast"]


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
        if not isinstance(self.sign_mask, int) or not 0 <= self.sign_mask < 1 << 16:
            raise ValueError(f"sign_mask must be a 16-bit mask, 0 to 0xFFFF, got {self.sign_mask!r}")


@dataclass(frozen=True)
class FourOverSix:
    """Per block, the scale that maps the maximum to 6 competes with the one that maps it to 4 (section 5).

    Attributes:
        error: what is compared: "mae", "mse", or "abs_max", the largest difference.
        arithmetic: "exact" differences from x, or "fp16" ones in units of the block scale.
        order: of the sum over a block, "sequential" or "tree".
        emax: the largest block scale, 256 or 448.

    Raises:
        ValueError: another value.
    """

    error: Literal["mae", "mse", "abs_max"] = "mae"
    arithmetic: Literal["exact", "fp16"] = "exact"
    order: Literal["sequential", "tree"] = "sequential"
    emax: int = 256

    def __post_init__(self):
        allowed = {
            "error": ("mae", "mse", "abs_max"),
            "arithmetic": ("exact", "fp16"),
            "order": ("sequential", "tree"),
            "emax": (256, 448),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {values}, got {getattr(self, name)!r}")

    @property
    def search(self) -> Search:
        """What a call is told."""
        return Search(SearchError[self.error.upper()], self.arithmetic == "fp16", self.order == "tree")


@dataclass(frozen=True)
class QuantSpec:
    """The description of one quantized operand.

    Attributes:
        format: "nvfp4", E2M1 elements with E4M3 block scales and a float32 amax (section 2); "mxfp8" or "mxfp8_e5m2",
            E4M3 or E5M2 elements with a power of two per block and no amax (section 8).
        block: (1, 16), for MXFP8 (1, 32), for one scale per run of elements along the quantized axis, which is the
            default; (16, 16) for one scale per aligned tile, which makes the row and the column quantization of a
            weight share their codes.
        scope: what one amax covers, "tensor" (the trailing matrix), "row" or "group". Row scope exists for
            (1, 16) blocks along the last axis only; group scope is what grouped operations make.
        scale_layout: "linear" or "swizzled" block scales.
        rht: the random Hadamard transform that comes before quantizing, for (1, 16) blocks along axis -2 only.
        four_over_six: how each block scale is chosen of two; None for the standard scale. Never stochastic, never with
            `rht`.
        scale_rounding: of powers of two: "rceil", with which no element saturates, or "floor", that of the binade of
            the block maximum.
        math: "exact", or "fast" for the approximate reciprocal of section 7 in a `quantize_dual` with `rht`.

    Rounding is not part of the spec: a `key` given to the operation means stochastic, none means nearest.

    Raises:
        ValueError: the combination has no definition in the numerics contract.
    """

    format: str = "nvfp4"
    block: Block = None  # type: ignore[assignment]  # that of the format
    scope: ScopeName = "tensor"
    scale_layout: ScaleLayout = "linear"
    rht: RHT | None = None
    four_over_six: FourOverSix | None = None
    scale_rounding: Literal["rceil", "floor"] = "rceil"
    math: MathName = "exact"

    def __post_init__(self):
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}, got {self.format!r}")
        block = self.facts.blocks[0] if self.block is None else self.block
        block = tuple(block) if isinstance(block, tuple | list) else block
        object.__setattr__(self, "block", block)
        if block not in self.facts.blocks:
            allowed = " or ".join(map(str, self.facts.blocks))
            raise ValueError(f"block of format {self.format!r} must be {allowed}, got {self.block!r}")
        if self.scope not in get_args(ScopeName):
            raise ValueError(f"scope must be one of {get_args(ScopeName)}, got {self.scope!r}")
        if self.scale_layout not in get_args(ScaleLayout):
            raise ValueError(f"scale_layout must be one of {get_args(ScaleLayout)}, got {self.scale_layout!r}")
        if self.scale_rounding not in ("rceil", "floor"):
            raise ValueError(f"scale_rounding must be 'rceil' or 'floor', got {self.scale_rounding!r}")
        if self.facts.has_amax and self.scale_rounding != "rceil":
            raise ValueError(f"scale_rounding belongs to powers of two, which {self.format!r} does not have")
        if not self.facts.has_amax and (self.scope == "row" or self.rht or self.four_over_six):
            raise ValueError(f"format {self.format!r} has no amax: no scope='row', no rht and no four_over_six")
        if self.math not in get_args(MathName):
            raise ValueError(f"math must be one of {get_args(MathName)}, got {self.math!r}")
        if self.rht is not None and not isinstance(self.rht, RHT):
            raise ValueError(f"rht must be a jax_nvfp4.RHT or None, got {self.rht!r}")
        if self.four_over_six is not None and not isinstance(self.four_over_six, FourOverSix):
            raise ValueError(f"four_over_six must be a jax_nvfp4.FourOverSix or None, got {self.four_over_six!r}")
        if self.four_over_six is not None and self.rht is not None:
            raise ValueError("four-over-six is not defined with a Hadamard transform (section 5): leave one out")
        if self.rht is not None and (self.is_tile or self.scope == "row"):
            raise ValueError("the Hadamard transform mixes 16 rows: it needs (1, 16) blocks and no amax per row")
        if self.math == "fast" and self.rht is None:
            raise ValueError("fast math exists for the Hadamard transform only (section 7): give rht=RHT() too")
        if self.is_tile and self.scope == "row":
            raise ValueError(
                f"a {block} block spans {block[0]} rows, so its amax cannot be per row: use scope='tensor'"
            )

    @property
    def facts(self) -> Format:
        """The facts about its format."""
        return FORMATS[self.format]

    @property
    def is_tile(self) -> bool:
        """Whether one block scale covers a square tile."""
        return self.block[0] > 1

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

    @property
    def emax(self) -> float:
        """The largest block scale."""
        return self.facts.scale_max if self.four_over_six is None else float(self.four_over_six.emax)

    def direction(self, stochastic: bool = False) -> Direction:
        """What a call is told about one of its outputs."""
        rht = NO_RHT if self.rht is None else self.rht.sign_mask
        return Direction(self.is_tile, stochastic, self.scale_layout == "swizzled", rht)


NVFP4 = QuantSpec()
NVFP4_2D = QuantSpec(block=NVFP4_FORMAT.blocks[1])
MXFP8 = QuantSpec("mxfp8")


@dataclass(frozen=True)
class Recipe:
    """Which operands of `dot` are quantized, and how (the table is in `jax_nvfp4/products/dot.py`).

    Attributes:
        x, w, grad: the specs of the activation, of the weight and of the gradient of the output. None keeps an
            operand in its own dtype. Either all three are given, and all three products of a training step are
            quantized, or `w` alone (quantization-aware training: the weight is fake-quantized, the gradient
            straight through).
        rht: the random Hadamard transform of both operands of the weight gradient; None for none. Both must have the
            same, so it belongs to the recipe.

    Raises:
        ValueError: another combination.
    """

    x: QuantSpec | None
    w: QuantSpec
    grad: QuantSpec | None
    rht: RHT | None = None

    def __post_init__(self):
        if (self.x is None) != (self.grad is None):
            raise ValueError("a recipe quantizes x and grad both or neither (w alone is quantization-aware training)")
        if self.is_training and not self.w.is_tile:
            raise ValueError(
                "a training recipe needs 16x16 blocks for w (NVFP4_2D): both directions of the weight must share codes"
            )
        if any(s is not None and s.scale_layout != "linear" for s in (self.x, self.w, self.grad)):
            raise ValueError("a recipe uses linear scales: how a product lays them out is its own affair")
        if any(s is not None and s.scope != "tensor" for s in (self.x, self.grad)):
            raise ValueError("a training recipe uses scope='tensor': the columnwise operands have no rows to scale by")
        if self.rht is not None and not isinstance(self.rht, RHT):
            raise ValueError(f"rht must be a jax_nvfp4.RHT or None, got {self.rht!r}")
        if self.rht is not None and not self.is_training:
            raise ValueError("rht belongs to the weight gradient of a training recipe: leave it out")

    @property
    def x_columnwise(self) -> QuantSpec:
        """The spec of the columnwise copy of the activation, for the weight gradient."""
        return replace(self.x or NVFP4, rht=self.rht)

    @property
    def grad_columnwise(self) -> QuantSpec:
        """The spec of the columnwise copy of the gradient, likewise."""
        return replace(self.grad or NVFP4, rht=self.rht)

    @property
    def is_training(self) -> bool:
        """Whether all three products are quantized, not only the weight."""
        return self.x is not None


NVFP4_TRAINING = Recipe(x=NVFP4, w=NVFP4_2D, grad=NVFP4, rht=RHT())
NVFP4_QAT = Recipe(x=None, w=NVFP4, grad=None)
