"""Block scales to global memory, in the linear or the swizzled layout (section 9), padding included.

In both layouts the scales of one row and four aligned columns are neighbours, so they leave as one word. The
word order of a swizzle tile takes rows 32 apart first: writers follow it, so that they fill whole sectors.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, Uint32

from jax_nvfp4.formats import SWIZZLE_COLUMNS, SWIZZLE_LANES, SWIZZLE_ROWS
from jax_nvfp4.kernels.primitives import memory

TILE_WORDS = SWIZZLE_ROWS  # words in a swizzle tile, one per row
# shifts and masks below, because a division of a signed number costs several instructions more
ROWS_LOG2, COLUMNS_LOG2, LANES_LOG2 = (n.bit_length() - 1 for n in (SWIZZLE_ROWS, SWIZZLE_COLUMNS, SWIZZLE_LANES))
_GROUPS_LOG2 = ROWS_LOG2 - LANES_LOG2  # rows that lie side by side


def row_of_word(word):
    """Row of a word of the scales, counted down the swizzle tiles of one tile column."""
    group = word & ((1 << _GROUPS_LOG2) - 1)
    return (word & -TILE_WORDS) | (group << LANES_LOG2) | ((word >> _GROUPS_LOG2) & (SWIZZLE_LANES - 1))


@cute.jit
def first_word(matrix: Int64, rows: Int32, columns: Int32, row: Int32, column: Int32) -> Int64:
    """Index of the first word of the swizzle tile of (row, column) in the (rows, columns) scales of many matrices."""
    tiles_down = (rows + SWIZZLE_ROWS - 1) >> ROWS_LOG2
    tiles_across = (columns + SWIZZLE_COLUMNS - 1) >> COLUMNS_LOG2
    return ((matrix * tiles_down + (row >> ROWS_LOG2)) * tiles_across + (column >> COLUMNS_LOG2)) * TILE_WORDS


@cute.jit
def store_two_tiles(
    words: cute.Tensor,
    scales: cute.Tensor,
    matrix: Int64,
    rows: Int32,
    columns: Int32,
    first_row: Int32,
    first_column: Int32,
    swizzled: Int32,
    thread: Int32,
):
    """Write the scales of 128 rows by 8 columns, which start at a multiple of that, with 256 threads.

    Args:
        words: the scales in shared memory, (row in the tile, 2) words of four columns; 0 where there is no scale.
        scales: the scales of the batch, as bytes.
        matrix: which one of the batch.
        rows: of the scales of a matrix.
        columns: of the scales of a matrix.
        first_row: of the tile.
        first_column: of the tile.
        swizzled: whether to write the swizzled layout.
        thread: index in the CTA.
    """
    if swizzled != 0:
        half, word = thread // TILE_WORDS, thread % TILE_WORDS
        column = first_column + half * SWIZZLE_COLUMNS
        if column < columns:
            tile = first_word(matrix, rows, columns, first_row, column)
            memory.groups(scales, Uint32, 1)[tile + word, 0] = words[row_of_word(word), half]
    else:
        row, half = thread // 2, thread % 2
        column = first_column + half * SWIZZLE_COLUMNS
        if (first_row + row < rows) & (column < columns):
            _store_word(words[row, half], scales, (matrix * rows + first_row + row) * columns, column, columns)


@cute.jit
def _store_word(word: Uint32, scales: cute.Tensor, row: Int64, column: Int32, columns: Int32):
    """Write as many of the four linear scales in a word as there are from `column` on; `row` is where theirs starts."""
    if columns & (SWIZZLE_COLUMNS - 1) == 0:
        memory.groups(scales, Uint32, 1)[(row + column) >> COLUMNS_LOG2, 0] = word
    else:
        for i in cutlass.range_constexpr(SWIZZLE_COLUMNS):
            if column + i < columns:
                scales[row + column + i] = Uint8(word >> Uint32(8 * i))


@cute.jit
def store_tile(
    words: cute.Tensor,
    scales: cute.Tensor,
    matrix: Int64,
    rows: Int32,
    columns: Int32,
    first_row: Int32,
    first_column: Int32,
    swizzled: Int32,
    thread: Int32,
):
    """`store_two_tiles` for one: 128 words of four columns, with 128 threads."""
    if swizzled != 0:
        tile = first_word(matrix, rows, columns, first_row, first_column)
        memory.groups(scales, Uint32, 1)[tile + thread, 0] = words[row_of_word(thread)]
    elif first_row + thread < rows:
        _store_word(words[thread], scales, (matrix * rows + first_row + thread) * columns, first_column, columns)
