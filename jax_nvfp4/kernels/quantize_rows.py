"""quantize_rows: blocks along the last axis, nearest or stochastic (contract sections 2, 5, 6 and 8).

A thread takes several blocks, each 16 neighbouring elements in, 8 bytes of codes and one scale byte out, and
loads all of them first; what a CTA needs once (position, tensor scales) is then a small part of its work.
Moves 2.5625 bytes per element (float32: 4.5625; MXFP8: 0.46875 more) and is bound by that; stochastic rounding adds one
Philox draw per block, which makes it bound by issue slots on sm_90. Every load is 16 bytes wide.

With linear scales a CTA takes consecutive blocks. With swizzled scales it takes `width` blocks of rows that
share the sectors of a swizzle tile, and writes these whole, through shared memory: single bytes there cost
12 % of the time. Four-over-six, bound by issue slots, has the blocks of a thread in a loop. Scale layout, amax scope
and all sizes are run-time arguments, uniform over the launch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint32, const_expr

from jax_nvfp4 import formats
from jax_nvfp4.formats import SWIZZLE_COLUMNS, SWIZZLE_ROWS
from jax_nvfp4.kernels.primitives import memory, operand, philox, placement, scaling, swizzle
from jax_nvfp4.mode import Scope

THREADS = 256
LOOPING_THREADS = 128  # where they have their blocks in a loop
PER_CTA = 512  # blocks: whole words of swizzled scales
PER_CTA_LOG2 = PER_CTA.bit_length() - 1
NARROWEST = PER_CTA_LOG2 - swizzle.ROWS_LOG2  # log2 of width: a CTA stays within the rows of a swizzle tile
WIDEST = PER_CTA_LOG2 - 3  # it has at least the 8 rows that share sectors


class Block(NamedTuple):
    """Where a block of a thread lies.

    Attributes:
        index: in its CTA.
        row: in its matrix.
        column: in its matrix, in blocks.
        place: in its matrix, row by row.
        exists: whether the matrix has it.
    """

    index: Int32
    row: Int32
    column: Int32
    place: Int32
    exists: Boolean


class Grid(NamedTuple):
    """What says where the blocks of a CTA lie, see `_kernel`."""

    rows: Int32
    columns: cute.FastDivmodDivisorV2
    group: Int32
    chunk: Int32
    width_log2: Int32


class Results(NamedTuple):
    """Where they go.

    Attributes:
        codes: of the matrix, (blocks, words).
        block_scales: of all matrices.
        staged: the swizzled scales of the CTA, in shared memory; None if linear.
        first: the blocks before the matrix.
    """

    codes: cute.Tensor
    block_scales: cute.Tensor
    staged: cute.Tensor | None
    first: Int64


@cute.kernel
def _kernel(
    x: cute.Tensor,
    amax: cute.Tensor,
    seed: cute.Tensor,
    origin: cute.Tensor,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    rows: Int32,
    columns: cute.FastDivmodDivisorV2,
    across: cute.FastDivmodDivisorV2,
    down: cute.FastDivmodDivisorV2,
    width_log2: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Columns counts blocks; the grid is flat over (batch, down, across). The mode says scope and layout too."""
    how, dtype = scaling.of(variant), variant.dtype
    row_scope, swizzled = variant.mode.scope == Scope.ROW, variant.mode.row.swizzled
    stochastic = variant.mode.row.stochastic
    threads = _threads(variant)
    per_thread = PER_CTA // threads
    thread, _, _ = cute.arch.thread_idx()
    per_row = columns.divisor
    rows_log2 = PER_CTA_LOG2 - width_log2  # rows of the CTA, if swizzled
    scopes = how.scopes(PER_CTA if row_scope else 1)

    matrix, matrix_scope, group, chunk = placement.dense(down, across if swizzled else None)
    first = matrix * (rows * per_row)
    x, codes = cute.domain_offset((first, 0), x), cute.domain_offset((first, 0), codes)

    grid = Grid(rows, columns, group, chunk, width_log2)
    blocks = [_locate(grid, thread + i * threads, swizzled) for i in range(per_thread)]
    words = [memory.registers(how.block // operand.per_word(dtype)) for _ in blocks]
    if const_expr(not how.whole_blocks):
        for i in cutlass.range_constexpr(per_thread):
            if blocks[i].exists:
                cute.autovec_copy(x[(Int64(blocks[i].place), None)], words[i])

    first_row, _ = divmod(group * PER_CTA, columns)  # of the CTA, if linear
    if const_expr(row_scope):
        last_row, _ = divmod(group * PER_CTA + PER_CTA - 1, columns)
        count = (1 << rows_log2) if const_expr(swizzled) else last_row - first_row + 1
        for i in cutlass.range(thread, count, threads, unroll=1):
            row = first_row + i
            if const_expr(swizzled):
                row = swizzle.row_of_word((group << rows_log2) + i)
            if row < rows:
                how.open_scope(scopes, i, amax, matrix_scope * rows + row, emax)
    elif thread == 0:
        how.open_scope(scopes, 0, amax, matrix_scope, emax)
    stream, staged = None, None
    if const_expr(stochastic):
        stream = philox.shared_stream()
        if thread == threads - 1:
            philox.open_stream(stream, seed, origin, matrix_scope)
    cute.arch.sync_threads()

    if const_expr(swizzled):
        staged = cute.make_tensor(cute.arch.alloc_smem(Uint8, PER_CTA, alignment=4), cute.make_layout(PER_CTA))
    into = Results(codes, block_scales, staged, first)
    if const_expr(how.whole_blocks):
        for i in cutlass.range(per_thread, unroll=1):
            block = _locate(grid, thread + i * threads, swizzled)
            if block.exists:
                cute.autovec_copy(x[(Int64(block.place), None)], words[0])
            _quantize(block, words[0], scopes, first_row, stream, grid, into, variant)
    else:
        for i in cutlass.range_constexpr(per_thread):
            _quantize(blocks[i], words[i], scopes, first_row, stream, grid, into, variant)

    if const_expr(swizzled):
        cute.arch.sync_threads()
        staged_words = cute.make_tensor(
            cute.recast_ptr(staged.iterator, dtype=Uint32), cute.make_layout(PER_CTA // SWIZZLE_COLUMNS)
        )
        column = (chunk << width_log2) + (thread >> rows_log2) * SWIZZLE_COLUMNS
        if (thread < PER_CTA // SWIZZLE_COLUMNS) & (column < per_row):
            word = (group << rows_log2) + (thread & ((1 << rows_log2) - 1))
            first_word = swizzle.first_word(matrix, rows, per_row, word, column)
            memory.groups(block_scales, Uint32, 1)[first_word + (word & (SWIZZLE_ROWS - 1)), 0] = staged_words[thread]


def _threads(variant) -> int:
    return LOOPING_THREADS if scaling.of(variant).whole_blocks else THREADS


def _locate(grid: Grid, index, swizzled: bool) -> Block:
    """Block `index` of a CTA."""
    if swizzled:
        word = (grid.group << (PER_CTA_LOG2 - grid.width_log2)) + (index >> grid.width_log2)
        row = swizzle.row_of_word(word)
        column = (grid.chunk << grid.width_log2) + (index & ((1 << grid.width_log2) - 1))
        per_row = grid.columns.divisor
        return Block(index, row, column, row * per_row + column, (row < grid.rows) & (column < per_row))
    place = grid.group * PER_CTA + index
    row, column = divmod(place, grid.columns)
    return Block(index, row, column, place, place < grid.rows * grid.columns.divisor)


@cute.jit
def _quantize(
    block: Block,
    words: cute.Tensor,
    scopes: cute.Tensor | None,
    first_row: Int32,
    stream: cute.Tensor | None,
    grid: Grid,
    into: Results,
    variant: cutlass.Constexpr,
):
    """Quantize a block whose elements are `words`."""
    how, row_scope, swizzled = scaling.of(variant), variant.mode.scope == Scope.ROW, variant.mode.row.swizzled
    byte = Uint32(0)
    if block.exists:
        scope = 0
        if const_expr(row_scope):
            scope = (block.index >> grid.width_log2) if const_expr(swizzled) else block.row - first_row
        random = None
        if const_expr(variant.mode.row.stochastic):
            random = philox.draw(stream, philox.ALONG_ROWS, block.column, block.row)
        loaded = [words[j] for j in range(cute.size(words))]
        scale = how.scale([loaded], [], scopes, scope)
        byte = scale.byte
        memory.store(how.codes(loaded, scale, random), into.codes[(Int64(block.place), None)])
        if const_expr(not swizzled):
            into.block_scales[into.first + block.place] = Uint8(byte)
    if const_expr(swizzled):
        lane = block.index & ((1 << grid.width_log2) - 1)
        rows_log2 = PER_CTA_LOG2 - grid.width_log2
        word = ((lane >> swizzle.COLUMNS_LOG2) << rows_log2) + (block.index >> grid.width_log2)
        into.staged[(word << swizzle.COLUMNS_LOG2) + (lane & (SWIZZLE_COLUMNS - 1))] = Uint8(byte)


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    amax: cute.Tensor,
    seed: cute.Tensor,
    origin: cute.Tensor,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_scope: Int32,
    swizzled: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Quantize `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, columns a multiple of 16.
        amax: (batch,), or (batch, rows) if row_scope.
        seed: (batch, 2) Philox keys; never read unless stochastic.
        origin: (batch, 3) global batch word, row and column of each matrix; never read unless stochastic.
        codes: (batch, rows, columns/2) bytes.
        block_scales: (batch, rows, columns/16) bytes, or the swizzled ones, padding included.
        batch: at least 1.
        rows: at least 1.
        columns: at least 16; a matrix has fewer than 2**31 - 2**10 blocks, since its blocks are counted in 32 bits.
        row_scope: 1 where each row has its own amax, else 0.
        swizzled: 1 for swizzled scales, else 0.
        emax: the largest block scale.
        variant: what to compile.
    """
    how = scaling.of(variant)
    blocks = Int32(columns // how.block)
    width_log2 = Int32(NARROWEST)
    across, down = Int32(1), Int32((rows * blocks + PER_CTA - 1) // PER_CTA)
    if swizzled != 0:
        for candidate in cutlass.range_constexpr(NARROWEST + 1, WIDEST + 1):
            # a wider one reads longer runs, but not at the price of idle threads
            if formats.round_up(blocks, 1 << candidate) * 8 <= blocks * 9:
                width_log2 = Int32(candidate)
        across = (blocks + (1 << width_log2) - 1) >> width_log2
        down = Int32(formats.round_up(rows, SWIZZLE_ROWS)) >> (PER_CTA_LOG2 - width_log2)
    # the two switches are compiled in: as run-time branches they cost 3 % of the time
    for scope in (Scope.TENSOR, Scope.ROW) if const_expr(variant.mode.format.has_amax) else (Scope.TENSOR,):
        for layout in (0, 1):
            if (row_scope == int(scope == Scope.ROW)) & (swizzled == layout):
                row = replace(variant.mode.row, swizzled=layout == 1)
                _kernel(
                    memory.groups(x, Uint32, how.block // operand.per_word(variant.dtype)),
                    amax,
                    seed,
                    origin,
                    memory.groups(codes, Uint32, how.code_words),
                    block_scales,
                    Int32(rows),
                    placement.divisor(blocks),
                    placement.divisor(across),
                    placement.divisor(down),
                    width_log2,
                    emax,
                    replace(variant, mode=replace(variant.mode, scope=scope, row=row)),
                ).launch(grid=[batch * across * down, 1, 1], block=[_threads(variant), 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, amax = memory.fake(operand.word_type(variant.dtype), 16), memory.fake(Float32, 4)
    seed, origin, codes, block_scales = (memory.fake(*fake) for fake in [(Uint32, 4)] * 2 + [(Uint8, 16)] * 2)
    sizes = Int64(1), Int64(1), Int64(variant.mode.format.block)
    return x, amax, seed, origin, codes, block_scales, *sizes, Int32(0), Int32(0), Float32(0)
