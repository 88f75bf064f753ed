"""Where the work of a CTA lies. Dense operands are batches of matrices; other placements are further functions here.

A grid is flat. A placement turns the index of a CTA into a tile of a matrix, and says which amax, seed and origin
belong to it, which is the same number as its matrix only where operands are dense.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64


class Place(NamedTuple):
    """The tile of a CTA.

    Attributes:
        matrix: its matrix among those of x.
        scope: the index of the amax that covers it (with one per row: of the matrix of amaxes), of its seed and of its
            origin.
        row: tiles above it in the matrix.
        column: tiles to the left of it.
    """

    matrix: Int64
    scope: Int64
    row: Int32
    column: Int32


def divisor(size):
    """A divisor for kernels, which divide 32-bit numbers by it without a division."""
    return cute.fast_divmod_create_divisor_v2(Int32(size))


def dense(down, across=None) -> Place:
    """The tile of this CTA, of a grid over (matrix, down, across).

    Args:
        down: how many tiles a matrix has from top to bottom, as a `divisor`.
        across: how many it has from left to right, None for one.
    """
    index, _, _ = cute.arch.block_idx()
    column = Int32(0)
    if across is not None:
        index, column = divmod(index, across)
    matrix, row = divmod(index, down)
    matrix = Int64(matrix)
    return Place(matrix, matrix, row, column)
