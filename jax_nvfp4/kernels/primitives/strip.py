"""The shape of kernels with blocks along the rows: a CTA has a tile of 8 strips, 128 rows, by 128 columns.

A strip is 16 rows. Each warp takes one; each thread four neighbouring columns of it, which are four blocks,
so that a warp reads whole rows of the tile with accesses of 8 bytes per thread (float32: 16).
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import memory, operand, ptx

BLOCK = NVFP4_FORMAT.block
COLUMNS = 4  # per thread
TILE_STRIPS = 8
TILE_ROWS = TILE_STRIPS * BLOCK
TILE_COLUMNS = 32 * COLUMNS
THREADS = 32 * TILE_STRIPS

# Words of shared memory between the codes of neighbouring threads, and of the columns of one thread: chosen so that
# neither the writers, a thread per strip and column, nor the readers, along the strips, meet bank conflicts.
_LANE_STRIDE = 2 * TILE_STRIPS + 2
_COLUMN_STRIDE = 32 * _LANE_STRIDE + 16


def _words_per_row(dtype: str) -> int:
    return COLUMNS // operand.per_word(dtype)


def registers(dtype: str):
    """Registers for the words of a strip."""
    return memory.registers(BLOCK * _words_per_row(dtype))


@cute.jit
def load_vectors(x: cute.Tensor, first: Int64, stride: Int64, words: cute.Tensor, dtype: cutlass.Constexpr):
    """Load a strip whose upper left element has index `first`, with `stride` elements from row to row.

    Both are multiples of 4, so that a row of the strip is one access.
    """
    width = _words_per_row(dtype)
    vectors = memory.groups(x, Uint32, width)
    for r in cutlass.range_constexpr(BLOCK):
        row = cute.make_tensor(words.iterator + r * width, cute.make_layout(width))
        cute.autovec_copy(vectors[(first // COLUMNS + r * (stride // COLUMNS), None)], row)


@cute.jit
def load_elements(
    x: cute.Tensor, first: Int64, stride: Int64, last: Int32, words: cute.Tensor, dtype: cutlass.Constexpr
):
    """Load a strip of any alignment; its column `last` (0..3) stands in for those that x does not have."""
    for r in cutlass.range_constexpr(BLOCK):
        elements = [Uint32(x[first + cutlass.min(last, c) + r * stride]) for c in range(COLUMNS)]
        for j in cutlass.range_constexpr(_words_per_row(dtype)):
            if const_expr(dtype == "float32"):
                words[r * COLUMNS + j] = elements[j]
            else:
                words[r * COLUMNS // 2 + j] = elements[2 * j] | (elements[2 * j + 1] << Uint32(16))


def columns(words, dtype: str) -> list:
    """The columns of a strip as blocks, see `operand`."""
    if dtype == "float32":
        return [[words[r * COLUMNS + c] for r in range(BLOCK)] for c in range(COLUMNS)]
    blocks = []
    for pair in range(COLUMNS // 2):
        rows = [(words[r * 2 + pair], words[r * 2 + 2 + pair]) for r in range(0, BLOCK, 2)]
        for selector in (0x5410, 0x7632):
            blocks.append([ptx.permute(a, b, selector) for a, b in rows])
    return blocks


def shared_codes():
    """Shared memory for the codes of a tile, (column of the thread, lane, strip, 2 words)."""
    return cute.make_tensor(
        cute.arch.alloc_smem(Uint32, COLUMNS * _COLUMN_STRIDE, alignment=16),
        cute.make_layout((COLUMNS, 32, TILE_STRIPS, 2), stride=(_COLUMN_STRIDE, _LANE_STRIDE, 2, 1)),
    )


@cute.jit
def store_codes(
    turned: cute.Tensor,
    codes: cute.Tensor,
    matrix: Int64,
    columns: Int32,
    strips: Int32,
    first_column: Int32,
    first_strip: Int32,
    thread: Int32,
):
    """Write the codes of a tile, 64 bytes of each column, to `codes`, viewed as (blocks, 2 words)."""
    for i in cutlass.range_constexpr(TILE_COLUMNS * TILE_STRIPS // THREADS):
        own_strip, own_column = thread % TILE_STRIPS, thread // TILE_STRIPS + i * (THREADS // TILE_STRIPS)
        column, strip = first_column + own_column, first_strip + own_strip
        if (column < columns) & (strip < strips):
            cute.autovec_copy(
                turned[(own_column % COLUMNS, own_column // COLUMNS, own_strip, None)],
                codes[((matrix * columns + column) * strips + strip, None)],
            )
