"""The shape of kernels with blocks along the rows: a CTA has a tile of 8 strips by 128 columns.

A strip is the rows of a block, 16 or 32. Each warp takes one; each thread four neighbouring columns of it, which are
four blocks, so that a warp reads whole rows of the tile with accesses of 8 bytes per thread (float32: 16).
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr

from jax_nvfp4.kernels.primitives import memory, operand, ptx

COLUMNS = 4  # per thread
TILE_STRIPS = 8
TILE_COLUMNS = 32 * COLUMNS
THREADS = 32 * TILE_STRIPS


def _words_per_row(dtype: str) -> int:
    return COLUMNS // operand.per_word(dtype)


def registers(dtype: str, block: int):
    """Registers for the words of a strip of `block` rows."""
    return memory.registers(block * _words_per_row(dtype))


@cute.jit
def load_vectors(x: cute.Tensor, first: Int64, stride: Int64, words: cute.Tensor, dtype: cutlass.Constexpr):
    """Load a strip whose upper left element has index `first`, with `stride` elements from row to row.

    Both are multiples of 4, so that a row of the strip is one access.
    """
    width = _words_per_row(dtype)
    vectors = memory.groups(x, Uint32, width)
    for r in cutlass.range_constexpr(cute.size(words) // width):
        row = cute.make_tensor(words.iterator + r * width, cute.make_layout(width))
        cute.autovec_copy(vectors[(first // COLUMNS + r * (stride // COLUMNS), None)], row)


@cute.jit
def load_elements(
    x: cute.Tensor, first: Int64, stride: Int64, last: Int32, words: cute.Tensor, dtype: cutlass.Constexpr
):
    """Load a strip of any alignment; its column `last` (0..3) stands in for those that x does not have."""
    for r in cutlass.range_constexpr(cute.size(words) // _words_per_row(dtype)):
        elements = [Uint32(x[first + cutlass.min(last, c) + r * stride]) for c in range(COLUMNS)]
        for j in cutlass.range_constexpr(_words_per_row(dtype)):
            if const_expr(dtype == "float32"):
                words[r * COLUMNS + j] = elements[j]
            else:
                words[r * COLUMNS // 2 + j] = elements[2 * j] | (elements[2 * j + 1] << Uint32(16))


def columns(words, dtype: str) -> list:
    """The columns of a strip as blocks, see `operand`."""
    rows = cute.size(words) // _words_per_row(dtype)
    if dtype == "float32":
        return [[words[r * COLUMNS + c] for r in range(rows)] for c in range(COLUMNS)]
    blocks = []
    for pair in range(COLUMNS // 2):
        pairs = [(words[r * 2 + pair], words[r * 2 + 2 + pair]) for r in range(0, rows, 2)]
        for selector in (0x5410, 0x7632):
            blocks.append([ptx.permute(a, b, selector) for a, b in pairs])
    return blocks


def rows(words, dtype: str) -> list:
    """The rows of a strip, as far as a thread has them."""
    width = _words_per_row(dtype)
    return [[words[i + j] for j in range(width)] for i in range(0, cute.size(words), width)]


def shared_codes(words: int):
    """Shared memory for the codes of a tile, (column of the thread, lane, strip, `words` of a block).

    Between those of neighbouring threads, and of the columns of one thread, are as many words as keep the writers, a
    thread per strip and column, and (of 2 words) the readers, along the strips, from bank conflicts.
    """
    lane_stride = words * TILE_STRIPS + min(words, 4)
    column_stride = 32 * lane_stride + 16
    return cute.make_tensor(
        cute.arch.alloc_smem(Uint32, COLUMNS * column_stride, alignment=16),
        cute.make_layout((COLUMNS, 32, TILE_STRIPS, words), stride=(column_stride, lane_stride, words, 1)),
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
    """Write the codes of a tile, those of 8 blocks of each column, to `codes`, viewed as (blocks, words)."""
    for i in cutlass.range_constexpr(TILE_COLUMNS * TILE_STRIPS // THREADS):
        own_strip, own_column = thread % TILE_STRIPS, thread // TILE_STRIPS + i * (THREADS // TILE_STRIPS)
        column, strip = first_column + own_column, first_strip + own_strip
        if (column < columns) & (strip < strips):
            cute.autovec_copy(
                turned[(own_column % COLUMNS, own_column // COLUMNS, own_strip, None)],
                codes[((matrix * columns + column) * strips + strip, None)],
            )
