"""Static facts about the number formats: element and scale types, block geometry, scale layouts.

Nothing here computes on arrays and nothing imports JAX, so the oracle, the operations, the kernel
table and the benchmarks all read the same facts. A dtype of a result or the length of a block is written
nowhere else in Python; `ffi/include/formats.h` is the same table in C++. Section numbers refer to
docs/numerics.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Block = tuple[int, int]
"""Rows and columns that share one block scale, for blocks along the last axis: (1, 16), (16, 16) or (1, 32)."""

ScaleLayout = Literal["linear", "swizzled"]
"""Linear: (R, C/block) row-major. Swizzled: the 128x4 tiles that block-scaled matrix units read (section 9)."""

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E5M2_MAX = 57344.0
E8M0_MAX = 2.0**127
FLOAT_DTYPES = ("bfloat16", "float16", "float32")
"""Names of the dtypes that can be quantized, and that dequantize can return."""

SWIZZLE_ROWS = 128  # rows of scales per swizzle tile
SWIZZLE_COLUMNS = 4  # columns of scales per swizzle tile
SWIZZLE_LANES = 32  # rows of a swizzle tile that lie 16 bytes apart


@dataclass(frozen=True)
class Format:
    """One block-scaled number format.

    Attributes:
        name: what users call it.
        block: consecutive elements along the quantized axis that share a scale.
        code_dtype: how codes are stored.
        codes_per_byte: how many elements one byte of codes holds.
        code_max: the largest magnitude of an element.
        scale_dtype: one per block.
        scale_max: the largest block scale (Emax, section 2).
        has_tiles: whether one scale can also cover block x block elements.
        has_amax: whether a second level of scaling, a float32 amax, belongs to it.
    """

    name: str
    block: int
    code_dtype: str
    codes_per_byte: int
    code_max: float
    scale_dtype: str
    scale_max: float
    has_tiles: bool
    has_amax: bool

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks there are."""
        return ((1, self.block), (self.block, self.block)) if self.has_tiles else ((1, self.block),)

    @property
    def element_dtype(self) -> str:
        """The dtype of one element. No array is stored in a dtype narrower than a byte: two E2M1 codes share one."""
        return self.code_dtype if self.codes_per_byte == 1 else "float4_e2m1fn"

    @property
    def block_bytes(self) -> int:
        """Bytes of codes that share a scale."""
        return self.block // self.codes_per_byte

    def codes_shape(self, rows, columns) -> tuple:
        """Shape of the codes of a (rows, columns) operand quantized along its last axis."""
        return rows, columns // self.codes_per_byte

    def scale_shape(self, rows, columns, layout: ScaleLayout) -> tuple:
        """Shape of the block scales of a (rows, columns) operand quantized along its last axis.

        | layout | shape | example: NVFP4, 33 x 48 |
        |---|---|---|
        | linear | (rows, columns/block) | (33, 3) |
        | swizzled | (rows to a multiple of 128, columns/block to a multiple of 4) | (128, 4) |
        """
        linear = rows, columns // self.block
        return linear if layout == "linear" else swizzled_shape(linear)


NVFP4_FORMAT = Format(
    name="nvfp4",
    block=16,
    code_dtype="uint8",
    codes_per_byte=2,
    code_max=E2M1_MAX,
    scale_dtype="float8_e4m3fn",
    scale_max=E4M3_MAX,
    has_tiles=True,
    has_amax=True,
)

MXFP8_FORMAT = Format(
    name="mxfp8",
    block=32,
    code_dtype="float8_e4m3fn",
    codes_per_byte=1,
    code_max=E4M3_MAX,
    scale_dtype="float8_e8m0fnu",
    scale_max=E8M0_MAX,
    has_tiles=False,
    has_amax=False,
)

MXFP8_E5M2_FORMAT = replace(MXFP8_FORMAT, name="mxfp8_e5m2", code_dtype="float8_e5m2", code_max=E5M2_MAX)

FORMATS: dict[str, Format] = {f.name: f for f in (NVFP4_FORMAT, MXFP8_FORMAT, MXFP8_E5M2_FORMAT)}
"""Every format by name. A custom call gets its index."""


def round_up(size, multiple: int):
    """The smallest multiple of `multiple` that is at least `size` (an int or a symbolic dimension)."""
    return (size + multiple - 1) // multiple * multiple


def swizzled_shape(shape: tuple) -> tuple:
    """The shape of swizzled scales, given the shape (..., R, C) of linear ones."""
    *batch, rows, columns = shape
    return (*batch, round_up(rows, SWIZZLE_ROWS), round_up(columns, SWIZZLE_COLUMNS))
