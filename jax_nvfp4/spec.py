"""How an operand is quantized (`QuantSpec`) and how a product uses it (`Recipe`).

Both are frozen and hashable, so equal specs share one trace and one compiled program. Neither imports
JAX: the oracle takes the same objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jax_nvfp4.formats import FORMATS, NVFP4_FORMAT, Block, Format, ScaleLayout
from jax_nvfp4.mode import Direction, Mode, Scope

ScopeName = Literal["tensor", "row"]
"""What one amax covers: a whole (M, K) matrix, or each of its rows. Leading axes are always batch."""


@dataclass(frozen=True)
class QuantSpec:
    """The description of one quantized operand.

    Attributes:
        format: "nvfp4", E2M1 elements with E4M3 block scales and a float32 amax (contract section 2).
        block: (1, 16) for one scale per 16 elements along the quantized axis, (16, 16) for one scale per
            aligned tile, which makes the row and the column quantization of a weight share their codes.
        scope: what one amax covers, "tensor" (the trailing matrix) or "row". Row scope exists for
            (1, 16) blocks along the last axis only.
        scale_layout: "linear" or "swizzled" block scales.

    Rounding is not part of the spec: a `key` given to the operation means stochastic, none means nearest.

    Raises:
        ValueError: the combination has no definition in the numerics contract.
    """

    format: str = "nvfp4"
    block: Block = NVFP4_FORMAT.blocks[0]
    scope: ScopeName = "tensor"
    scale_layout: ScaleLayout = "linear"

    def __post_init__(self):
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}, got {self.format!r}")
        block = tuple(self.block) if isinstance(self.block, tuple | list) else self.block
        object.__setattr__(self, "block", block)
        if block not in self.facts.blocks:
            allowed = " or ".join(map(str, self.facts.blocks))
            raise ValueError(f"block of format {self.format!r} must be {allowed}, got {self.block!r}")
        if self.scope not in get_args(ScopeName):
            raise ValueError(f"scope must be one of {get_args(ScopeName)}, got {self.scope!r}")
        if self.scale_layout not in get_args(ScaleLayout):
            raise ValueError(f"scale_layout must be one of {get_args(ScaleLayout)}, got {self.scale_layout!r}")
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
        direction = self.direction(stochastic)
        directions = {"row": direction} if axis == -1 else {"col": direction}
        return Mode(self.facts, Scope[self.scope.upper()], **directions)

    def direction(self, stochastic: bool = False) -> Direction:
        """What a call is told about one of its outputs."""
        return Direction(self.is_tile, stochastic, self.scale_layout == "swizzled")


NVFP4 = QuantSpec()
NVFP4_2D = QuantSpec(block=NVFP4_FORMAT.blocks[1])


@dataclass(frozen=True)
class Recipe:
    """Which operands of `dot` are quantized, and how (the table is in `jax_nvfp4/dot.py`).

    Attributes:
        x, w, grad: the specs of the activation, of the weight and of the gradient of the output. None keeps an
            operand in its own dtype. Either all three are given, and all three products of a training step are
            quantized, or `w` alone (quantization-aware training: the weight is fake-quantized, the gradient
            straight through).
        rht: whether the operands of the weight gradient pass a random Hadamard transform. False in this version.

    Raises:
        ValueError: another combination.
    """

    x: QuantSpec | None
    w: QuantSpec
    grad: QuantSpec | None
    rht: bool = False

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
        if self.is_training and not self.w.is_tile:
            raise ValueError(
                "a training recipe needs 16x16 blocks for w (NVFP4_2D): both directions of the weight must share codes"
            )
        for name, spec in (("x", self.x), ("grad", self.grad)):
            if spec is not None and spec.is_tile:
                raise ValueError(
                    f"{name} cannot have {spec.block} blocks: they need a multiple of {spec.block[0]} tokens and are "
                    f"never rounded stochastically. Use {name}=NVFP4, with 16x16 blocks for w only"
                )
        if any(s is not None and s.scale_layout != "linear" for s in (self.x, self.w, self.grad)):
            raise ValueError("a recipe uses linear scales: how a product lays them out is its own affair")
        if any(s is not None and s.scope != "tensor" for s in (self.x, self.grad)):
            raise ValueError("a training recipe uses scope='tensor': the columnwise operands have no rows to scale by")
        if self.rht:
            raise ValueError("rht=True is not available in this version: use rht=False")

    @property
    def is_training(self) -> bool:
        """Whether all three products are quantized, not only the weight."""
        return self.x is not None


NVFP4_TRAINING = Recipe(x=NVFP4, w=NVFP4_2D, grad=NVFP4)
NVFP4_QAT = Recipe(x=None, w=NVFP4, grad=None)
