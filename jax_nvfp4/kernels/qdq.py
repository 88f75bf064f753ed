"""qdq: quantize and dequantize in one pass, 1x16 blocks or 16x16 tiles (contract section 2, steps 3 to 7).

A thread holds pieces of 16 bytes, neighbouring lanes neighbouring pieces, so every access is one full line
per quarter warp. The 2 (float32: 4) lanes that share a block agree on its maximum by shuffles; a tile adds
8 rows per thread and one more shuffle. Moves 4 bytes per element (float32: 8) and is bound by that.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint16, Uint32, const_expr

from jax_nvfp4.formats import BLOCK
from jax_nvfp4.kernels.primitives import e2m1, memory, operand, ptx, scales

THREADS = 256
WARPS = THREADS // 32
GRID_Y = 65535  # what CUDA allows
WORDS = 4  # per piece
PIECES = 2  # per thread, 1x16 blocks
MAX_SCOPES = THREADS * PIECES // 2 + 1  # rows of one block and two pieces, the first and the last one shared
TILE_PIECES = BLOCK // 2  # per thread, 16x16 tiles: half a warp per row


def _lanes_per_block(dtype: str) -> int:
    return operand.words_per_block(dtype) // WORDS


def _shuffled_max(largest, distances):
    for distance in distances:
        largest = ptx.max_nan(largest, cute.arch.shuffle_sync_bfly(largest, distance))
    return largest


def _round_trip(words, multiplier, factor, dtype: str, hopper: bool) -> list:
    """Words of E2M1(x * e) * f."""
    products = [ptx.mul(x, multiplier) for x in operand.widen(words, dtype)]
    return operand.narrow([ptx.mul(v, factor) for v in e2m1.round_values(products, hopper)], dtype)


def _block_factors(largest, amax, scale_sixth, inverse) -> tuple:
    """(e, f) of a block: what its elements and its codes are multiplied by."""
    byte, multiplier = scales.block_scale(largest, scale_sixth, inverse)
    return multiplier, scales.decode_multiplier(byte, amax)


def _store(piece, words) -> None:
    for w in range(WORDS):
        piece[w] = words[w]


@cute.kernel
def _kernel(
    x: cute.Tensor,
    amax: cute.Tensor,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    row_pieces: Uint32,
    row_scope: Int32,
    dtype: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
):
    """The grid is (chunks of one matrix, batch modulo GRID_Y, the rest of batch)."""
    thread, _, _ = cute.arch.thread_idx()
    chunk, batch_low, batch_high = cute.arch.block_idx()
    # (amax, S/6, D) of each scope that the CTA meets: one matrix, or with row_scope at most one row per block
    scopes = cute.make_tensor(
        cute.arch.alloc_smem(Float32, 4 * MAX_SCOPES, alignment=16),
        cute.make_layout((MAX_SCOPES, 3), stride=(4, 1)),
    )
    count = TILE_PIECES if const_expr(tile) else PIECES

    matrix = Int64(batch_high) * GRID_Y + batch_low
    base = matrix * rows * row_pieces
    inside = []  # piece indices within the matrix
    if const_expr(tile):
        warp = Uint32(chunk) * WARPS + Uint32(thread // 32)
        groups = (row_pieces + 15) // 16
        row = Int64(warp // groups) * BLOCK + thread % 32 // 16
        column = warp % groups * 16 + Uint32(thread % 16)
        active = (column < row_pieces) & (row < rows) & (matrix < batch)
        inside = [(row + 2 * j) * row_pieces + column for j in range(count)]
        actives = [active] * count
    else:
        first = Int64(chunk) * (THREADS * PIECES) + thread
        inside = [first + j * THREADS for j in range(count)]
        actives = [(i < rows * row_pieces) & (matrix < batch) for i in inside]

    pieces = [memory.registers(WORDS) for _ in range(count)]
    for j in cutlass.range_constexpr(count):
        for w in cutlass.range_constexpr(WORDS):
            pieces[j][w] = Uint32(0)
        if actives[j]:
            cute.autovec_copy(x[(base + inside[j], None)], pieces[j])
    loaded = [[pieces[j][w] for w in range(WORDS)] for j in range(count)]

    first_scope, scope_count = matrix, Int32(1)
    first_row = Uint32(0)
    if const_expr(not tile):
        if row_scope != 0:
            first_row = Uint32(chunk) * (THREADS * PIECES) // row_pieces
            last_row = (Uint32(chunk + 1) * (THREADS * PIECES) - 1) // row_pieces
            first_scope = matrix * rows + first_row
            scope_count = Int32(cutlass.min(Int64(last_row) + 1, rows)) - Int32(first_row)
    for scope in cutlass.range(thread, scope_count, THREADS, unroll=1):
        if matrix < batch:
            scopes[scope, 0] = amax[first_scope + scope]
            scopes[scope, 1], scopes[scope, 2] = scales.tensor_scales(amax[first_scope + scope])
    cute.arch.sync_threads()

    neighbours = [1, 2][: _lanes_per_block(dtype) // 2]
    maxima = [operand.block_max(words, dtype) for words in loaded]
    if const_expr(tile):
        largest = maxima[0]
        for m in maxima[1:]:
            largest = ptx.max_nan(largest, m)
        largest = _shuffled_max(largest, [*neighbours, 16])
        multiplier, factor = _block_factors(largest, scopes[0, 0], scopes[0, 1], scopes[0, 2])
        if active:
            for j in cutlass.range_constexpr(count):
                _store(pieces[j], _round_trip(loaded[j], multiplier, factor, dtype, hopper))
                cute.autovec_copy(pieces[j], y[(base + inside[j], None)])
    else:
        maxima = [_shuffled_max(m, neighbours) for m in maxima]
        for j in cutlass.range_constexpr(count):
            if actives[j]:
                scope = Uint32(0)
                if row_scope != 0:
                    scope = Uint32(inside[j]) // row_pieces - first_row
                multiplier, factor = _block_factors(maxima[j], scopes[scope, 0], scopes[scope, 1], scopes[scope, 2])
                _store(pieces[j], _round_trip(loaded[j], multiplier, factor, dtype, hopper))
                cute.autovec_copy(pieces[j], y[(base + inside[j], None)])


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    amax: cute.Tensor,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_scope: Int32,
    dtype: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
):
    """Quantize and dequantize `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, columns a multiple of 16.
        amax: (batch,), or (batch, rows) if row_scope.
        y: like x.
        batch: at least 1.
        rows: at least 1, a multiple of 16 if `tile`.
        columns: at least 16; a matrix has fewer than 2**32 pieces of 16 bytes.
        row_scope: 1 where each row has its own amax, else 0; never with `tile`.
        dtype: name of the float dtype of x and y.
        tile: whether a block is a 16x16 tile.
        hopper: whether to compile the sm_90 form.
    """
    row_pieces = columns * operand.words_per_block(dtype) // (BLOCK * WORDS)
    if const_expr(tile):
        chunks = (rows // BLOCK * ((row_pieces + 15) // 16) + WARPS - 1) // WARPS
    else:
        chunks = (rows * row_pieces + THREADS * PIECES - 1) // (THREADS * PIECES)
    _kernel(
        memory.groups(x, Uint32, WORDS),
        amax,
        memory.groups(y, Uint32, WORDS),
        batch,
        rows,
        Uint32(row_pieces),
        row_scope,
        dtype,
        tile,
        hopper,
    ).launch(
        grid=[chunks, cutlass.min(batch, Int64(GRID_Y)), (batch + GRID_Y - 1) // GRID_Y],
        block=[THREADS, 1, 1],
        stream=stream,
    )


def arguments(*, dtype: str, hopper: bool, tile: bool) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    word = Uint32 if dtype == "float32" else Uint16
    x, y = (memory.fake(word, 16) for _ in range(2))
    amax = memory.fake(Float32, 4)
    return x, amax, y, Int64(1), Int64(1), Int64(BLOCK), Int32(0), dtype, tile, hopper
