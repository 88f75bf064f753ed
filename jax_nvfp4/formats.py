"""Static facts about the number formats: element and scale ranges, block geometry, scale layouts.

Nothing here computes on arrays and nothing imports JAX, so the oracle, the operations, the kernel
table and the benchmarks all read the same facts. Section numbers refer to docs/numerics.md.
"""

from __future__ import annotations

from typing import Literal

Block = tuple[int, int]
"""Rows and columns that share one block scale, for blocks along the last axis: (1, 16) or (16, 16)."""

Scope = Literal["tensor", "row"]
"""What one amax covers: a whole (M, K) matrix, or each of its rows. Leading axes are always batch."""

ScaleLayout = Literal["linear", "swizzled"]
"""Linear: (R, C/16) row-major. Swizzled: the 128x4 tiles that block-scaled matrix units read (section 9)."""

BLOCK = 16  # elements per NVFP4 block scale
E2M1_MAX = 6.0
E4M3_MAX = 448.0
FLOAT_DTYPES = ("bfloat16", "float16", "float32")
"""Names of the dtypes that can be quantized, and that dequantize can return."""

SWIZZLE_ROWS = 128  # rows of scales per swizzle tile
SWIZZLE_COLUMNS = 4  # columns of scales per swizzle tile


def round_up(size, multiple: int):
    """The smallest multiple of `multiple` that is at least `size` (an int or a symbolic dimension)."""
    return (size + multiple - 1) // multiple * multiple


def scale_shape(rows, columns, layout: ScaleLayout) -> tuple:
    """Shape of the block scales of a (rows, columns) operand quantized along its last axis.

    | layout | shape | example: 33 x 48 |
    |---|---|---|
    | linear | (rows, columns/16) | (33, 3) |
    | swizzled | (rows to a multiple of 128, columns/16 to a multiple of 4) | (128, 4) |
    """
    blocks = columns // BLOCK
    if layout == "linear":
        return rows, blocks
    return round_up(rows, SWIZZLE_ROWS), round_up(blocks, SWIZZLE_COLUMNS)
