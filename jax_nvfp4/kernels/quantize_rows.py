"""quantize_rows: 1x16 blocks along the last axis, nearest or stochastic (contract sections 2 and 6).

A thread takes several blocks, each 16 neighbouring elements in, 8 bytes of codes and one scale byte out, and
loads all of them first; what a CTA needs once (position, tensor scales) is then a small part of its work.
Moves 2.5625 bytes per element (float32: 4.5625) and is bound by that; stochastic rounding adds one Philox
draw per block, which makes it bound by issue slots on sm_90. Every load is 16 bytes wide.

With linear scales a CTA takes consecutive blocks. With swizzled scales it takes `width` blocks of rows that
share the sectors of a swizzle tile, and writes these whole, through shared memory: single bytes there cost
12 % of the time. Scale layout, amax scope and all sizes are run-time arguments, uniform over the launch.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, const_expr

from jax_nvfp4 import formats
from jax_nvfp4.formats import BLOCK, SWIZZLE_COLUMNS, SWIZZLE_ROWS
from jax_nvfp4.kernels.primitives import e2m1, memory, operand, philox, scales, swizzle

THREADS = 256
PER_THREAD = 2  # blocks, at least: a CTA then has whole words of swizzled scales
PER_CTA = THREADS * PER_THREAD
PER_CTA_LOG2 = PER_CTA.bit_length() - 1
NARROWEST = PER_CTA_LOG2 - 7  # log2 of width: a CTA stays within the 128 rows of a swizzle tile
WIDEST = PER_CTA_LOG2 - 3  # it has at least the 8 rows that share sectors


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
    row_scope: cutlass.Constexpr,
    swizzled: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    stochastic: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
):
    """Columns counts blocks; the grid is flat over (batch, down, across)."""
    thread, _, _ = cute.arch.thread_idx()
    tile, _, _ = cute.arch.block_idx()
    per_row = columns.divisor
    rows_log2 = PER_CTA_LOG2 - width_log2  # rows of the CTA, if swizzled
    tensor_scales = cute.make_tensor(
        cute.arch.alloc_smem(Float32, 2 * PER_CTA if row_scope else 2, alignment=8),
        cute.make_layout((PER_CTA if row_scope else 1, 2), stride=(2, 1)),
    )

    chunk = Int32(0)
    if const_expr(swizzled):
        tile, chunk = divmod(tile, across)
    matrix, group = divmod(tile, down)
    matrix = Int64(matrix)
    first = matrix * (rows * per_row)
    x, codes = cute.domain_offset((first, 0), x), cute.domain_offset((first, 0), codes)

    # per block: its index in the CTA, row, column, index in the matrix, and whether it exists
    places = []
    for i in cutlass.range_constexpr(PER_THREAD):
        index = thread + i * THREADS
        if const_expr(swizzled):
            word = (group << rows_log2) + (index >> width_log2)
            row = swizzle.row_of_word(word)
            column = (chunk << width_log2) + (index & ((1 << width_log2) - 1))
            places.append((index, row, column, row * per_row + column, (row < rows) & (column < per_row)))
        else:
            block = group * PER_CTA + index
            row, column = divmod(block, columns)
            places.append((index, row, column, block, block < rows * per_row))
    words = [memory.registers(operand.words_per_block(dtype)) for _ in places]
    for i in cutlass.range_constexpr(PER_THREAD):
        if places[i][4]:
            cute.autovec_copy(x[(Int64(places[i][3]), None)], words[i])

    first_row, _ = divmod(group * PER_CTA, columns)  # of the CTA, if linear
    if const_expr(row_scope):
        last_row, _ = divmod(group * PER_CTA + PER_CTA - 1, columns)
        scopes = (1 << rows_log2) if const_expr(swizzled) else last_row - first_row + 1
        for i in cutlass.range(thread, scopes, THREADS, unroll=1):
            row = first_row + i
            if const_expr(swizzled):
                row = swizzle.row_of_word((group << rows_log2) + i)
            if row < rows:
                tensor_scales[i, 0], tensor_scales[i, 1] = scales.tensor_scales(amax[matrix * rows + row])
    elif thread == 0:
        tensor_scales[0, 0], tensor_scales[0, 1] = scales.tensor_scales(amax[matrix])
    if const_expr(stochastic):
        stream = philox.shared_stream()
        if thread == THREADS - 1:
            philox.open_stream(stream, seed, origin, matrix)
    cute.arch.sync_threads()

    if const_expr(swizzled):
        staged = cute.make_tensor(cute.arch.alloc_smem(Uint8, PER_CTA, alignment=4), cute.make_layout(PER_CTA))
    for i in cutlass.range_constexpr(PER_THREAD):
        index, row, column, block, exists = places[i]
        byte = Uint32(0)
        if exists:
            scope = 0
            if const_expr(row_scope):
                scope = (index >> width_log2) if const_expr(swizzled) else row - first_row
            random = None
            if const_expr(stochastic):
                random = philox.draw(stream, philox.ALONG_ROWS, column, row)
            loaded = [words[i][j] for j in range(operand.words_per_block(dtype))]
            byte, multiplier = scales.block_scale(
                operand.block_max(loaded, dtype), tensor_scales[scope, 0], tensor_scales[scope, 1]
            )
            out = memory.registers(2)
            out[0], out[1] = e2m1.encode_block(loaded, multiplier, byte, dtype, hopper, random)
            cute.autovec_copy(out, codes[(Int64(block), None)])
            if const_expr(not swizzled):
                block_scales[first + block] = Uint8(byte)
        if const_expr(swizzled):
            lane = index & ((1 << width_log2) - 1)
            word = ((lane >> 2) << rows_log2) + (index >> width_log2)
            staged[(word << 2) + (lane & 3)] = Uint8(byte)

    if const_expr(swizzled):
        cute.arch.sync_threads()
        staged_words = cute.make_tensor(
            cute.recast_ptr(staged.iterator, dtype=Uint32), cute.make_layout(PER_CTA // SWIZZLE_COLUMNS)
        )
        column = (chunk << width_log2) + (thread >> rows_log2) * SWIZZLE_COLUMNS
        if (thread < PER_CTA // SWIZZLE_COLUMNS) & (column < per_row):
            word = (group << rows_log2) + (thread & ((1 << rows_log2) - 1))
            first_word = swizzle.first_word(matrix, rows, per_row, word >> 7, column >> 2)
            memory.groups(block_scales, Uint32, 1)[first_word + (word & (SWIZZLE_ROWS - 1)), 0] = staged_words[thread]


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
    dtype: cutlass.Constexpr,
    stochastic: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
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
        dtype: name of the float dtype of x.
        stochastic: whether to round stochastically.
        hopper: whether to compile the sm_90 form.
    """
    blocks = Int32(columns // BLOCK)
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
    for choice in cutlass.range_constexpr(4):
        if (row_scope == choice // 2) & (swizzled == choice % 2):
            _kernel(
                memory.groups(x, Uint32, operand.words_per_block(dtype)),
                amax,
                seed,
                origin,
                memory.groups(codes, Uint32, 2),
                block_scales,
                Int32(rows),
                memory.divisor(blocks),
                memory.divisor(across),
                memory.divisor(down),
                width_log2,
                choice // 2 == 1,
                choice % 2 == 1,
                dtype,
                stochastic,
                hopper,
            ).launch(grid=[batch * across * down, 1, 1], block=[THREADS, 1, 1], stream=stream)


def arguments(*, dtype: str, hopper: bool, stochastic: bool) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""

    return (
        memory.fake(Uint32 if dtype == "float32" else Uint16, 16),
        memory.fake(Float32, 4),
        memory.fake(Uint32, 4),
        memory.fake(Uint32, 4),
        memory.fake(Uint8, 16),
        memory.fake(Uint8, 16),
        Int64(1),
        Int64(1),
        Int64(16),
        Int32(0),
        Int32(0),
        dtype,
        stochastic,
        hopper,
    )
