"""quantize_mxfp8_dual: 1x32 blocks along both axes from one read, columns stored transposed (contract section 8).

A CTA has a tile of 128x128, whose scales are one swizzle tile in either direction. Each warp takes 32 rows by 64
columns of it, each thread 8 by 8 elements, so that four threads share a block of either direction, find its maximum by
shuffles, and scale from the same registers. Rows of codes leave at once; columns are turned in shared memory, from
where 128 codes of one column leave together. Moves 4.0625 bytes per element (float32: 6.0625) and is bound by that.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, Uint32

from jax_nvfp4.formats import MXFP8_FORMAT
from jax_nvfp4.kernels.primitives import memory, operand, placement, ptx, scaling, swizzle

BLOCK = MXFP8_FORMAT.block
SIDE = 8  # elements of a thread in a row and in a column
LANES = BLOCK // SIDE  # that share a block
ACROSS = 32 // LANES  # lanes of a warp side by side
TILE = 128
WARPS_ACROSS = TILE // (ACROSS * SIDE)
THREADS = 32 * WARPS_ACROSS * (TILE // BLOCK)
PIECE = 16  # codes that a thread stores at once


@cute.kernel
def _kernel(
    x: cute.Tensor,
    row_codes: cute.Tensor,
    row_scales: cute.Tensor,
    column_codes: cute.Tensor,
    column_scales: cute.Tensor,
    rows: Int32,
    columns: Int32,
    across: cute.FastDivmodDivisorV2,
    down: cute.FastDivmodDivisorV2,
    row_swizzled: Int32,
    column_swizzled: Int32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, down, across) tiles."""
    how, dtype = scaling.of(variant), variant.dtype
    width = SIDE // operand.per_word(dtype)  # words of a row of a thread
    thread, _, _ = cute.arch.thread_idx()
    warp, lane = thread // 32, thread % 32
    strip, unit = warp // WARPS_ACROSS, warp % WARPS_ACROSS * ACROSS + lane % ACROSS
    turned = _shared_codes()
    by_row, by_column = (
        cute.make_tensor(
            cute.arch.alloc_smem(Uint8, TILE * (TILE // BLOCK), alignment=4),
            cute.make_layout((TILE, TILE // BLOCK), stride=(TILE // BLOCK, 1)),
        )
        for _ in range(2)
    )

    matrix, _, tile_row, tile_column = placement.dense(down, across)
    first_row, first_column = tile_row * TILE, tile_column * TILE
    own_row = strip * BLOCK + lane // ACROSS * SIDE
    row, column = first_row + own_row, first_column + unit * SIDE
    active = (row < rows) & (column < columns)
    first = (matrix * rows + row) * (columns // SIDE) + column // SIDE  # in units of 8 elements
    words = [memory.registers(width) for _ in range(SIDE)]
    if active:
        for r in cutlass.range_constexpr(SIDE):
            cute.autovec_copy(x[(first + r * (columns // SIDE), None)], words[r])

    for r in cutlass.range_constexpr(SIDE):
        block = [words[r][j] for j in range(width)]
        scale = how.scale([block], [1, 2], None)
        if active:
            memory.store(how.codes(block, scale), row_codes[(first + r * (columns // SIDE), None)])
        byte = scale.byte
        if not active:
            byte = Uint32(0)  # padding of swizzled scales
        if unit % LANES == 0:
            by_row[own_row + r, unit // LANES] = Uint8(byte)

    for i in cutlass.range_constexpr(SIDE):
        block = _column(words, i, dtype)
        scale = how.scale([block], [ACROSS, 2 * ACROSS], None)
        memory.store(how.codes(block, scale), turned[(i, unit, own_row // SIDE, None)])
        byte = scale.byte
        if not active:
            byte = Uint32(0)
        if lane < ACROSS:
            by_column[unit * SIDE + i, strip] = Uint8(byte)
    cute.arch.sync_threads()

    pieces = cute.make_tensor(
        turned.iterator,
        cute.make_layout((*turned.shape[:2], TILE // PIECE, PIECE // 4), stride=(*turned.stride[:2], PIECE // 4, 1)),
    )
    for i in cutlass.range_constexpr(TILE * (TILE // PIECE) // THREADS):
        piece, own_column = thread % (TILE // PIECE), thread // (TILE // PIECE) + i * (THREADS // (TILE // PIECE))
        column, row = first_column + own_column, first_row + piece * PIECE
        if (column < columns) & (row < rows):
            cute.autovec_copy(
                pieces[(own_column % SIDE, own_column // SIDE, piece, None)],
                column_codes[((matrix * columns + column) * (rows // PIECE) + row // PIECE, None)],
            )
    if thread < TILE:
        scales = _words(by_row)
        swizzle.store_tile(
            scales, row_scales, matrix, rows, columns // BLOCK, first_row, first_column // BLOCK, row_swizzled, thread
        )
    else:
        scales = _words(by_column)
        swizzle.store_tile(
            scales,
            column_scales,
            matrix,
            columns,
            rows // BLOCK,
            first_column,
            first_row // BLOCK,
            column_swizzled,
            thread - TILE,
        )


def _shared_codes():
    """Shared memory for the codes of a tile, (column of the thread, unit of 8 columns, of 8 rows, words).

    Between the columns of neighbouring units are 16 bytes more, so that a store meets every bank once.
    """
    stride = (TILE + 16) // 4
    units = TILE // SIDE
    return cute.make_tensor(
        cute.arch.alloc_smem(Uint32, SIDE * units * stride, alignment=16),
        cute.make_layout((SIDE, units, units, 2), stride=(units * stride, stride, 2, 1)),
    )


def _column(words: list, i: int, dtype: str) -> list:
    """Column i of the elements of a thread as a part of a block, see `operand`."""
    if dtype == "float32":
        return [row[i] for row in words]
    selector = 0x7632 if i % 2 else 0x5410
    return [ptx.permute(a[i // 2], b[i // 2], selector) for a, b in zip(words[0::2], words[1::2], strict=True)]


def _words(scales):
    """Staged scales as words of four."""
    return cute.make_tensor(cute.recast_ptr(scales.iterator, dtype=Uint32), cute.make_layout(TILE))


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    row_codes: cute.Tensor,
    row_scales: cute.Tensor,
    column_codes: cute.Tensor,
    column_scales: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_swizzled: Int32,
    column_swizzled: Int32,
    variant: cutlass.Constexpr,
):
    """Quantize `batch` matrices of (rows, columns) and their transposes.

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, rows and columns multiples of 32.
        row_codes: (batch, rows, columns) bytes.
        row_scales: (batch, rows, columns/32) bytes, or the swizzled ones, padding included.
        column_codes: (batch, columns, rows) bytes.
        column_scales: (batch, columns, rows/32) bytes, or the swizzled ones, padding included.
        batch: at least 1.
        rows: at least 32.
        columns: at least 32.
        row_swizzled: 1 for swizzled row scales, else 0.
        column_swizzled: 1 for swizzled column scales, else 0.
        variant: what to compile.
    """
    across = Int32((columns + TILE - 1) // TILE)
    down = Int32((rows + TILE - 1) // TILE)
    _kernel(
        memory.groups(x, Uint32, SIDE // operand.per_word(variant.dtype)),
        memory.groups(row_codes, Uint32, 2),
        row_scales,
        memory.groups(column_codes, Uint32, PIECE // 4),
        column_scales,
        Int32(rows),
        Int32(columns),
        placement.divisor(across),
        placement.divisor(down),
        row_swizzled,
        column_swizzled,
        variant,
    ).launch(grid=[batch * across * down, 1, 1], block=[THREADS, 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, results = memory.fake(operand.word_type(variant.dtype), 16), [memory.fake(Uint8, 16) for _ in range(4)]
    return x, *results, Int64(1), Int64(BLOCK), Int64(BLOCK), Int32(0), Int32(0)
