"""qdq: quantize and dequantize in one pass, 1x16 blocks or 16x16 tiles (contract section 2, steps 3 to 7).

A thread holds pieces of 16 bytes, neighbouring lanes neighbouring pieces, so every access is one full line
per quarter warp. The 2 (float32: 4) lanes that share a block agree on its maximum by shuffles; a tile adds
8 rows per thread and one more shuffle. Four-over-six, bound by issue slots, has blocks of a thread in a loop instead,
since waiting at the barrier costs more than its loads, which fill half a sector each. Moves 4 bytes per element
(float32: 8) and is bound by that.
"""

from __future__ import annotations

from dataclasses import replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr

from jax_nvfp4.kernels.primitives import memory, operand, placement, scaling
from jax_nvfp4.mode import Scope

THREADS = 256
WARPS = THREADS // 32
WORDS = 4  # per piece
PIECES = 2  # per thread, 1x16 blocks that lanes share
REPEATS = 4  # blocks of a thread that has whole ones
HALF_WARP = 16  # lanes on one row of a tile


def _pieces(variant) -> int:
    """Pieces of a thread."""
    how = scaling.of(variant)
    if variant.mode.row.tile:
        return how.block // 2
    return how.block // (WORDS * operand.per_word(variant.dtype)) * REPEATS if how.whole_blocks else PIECES


@cute.kernel
def _kernel(
    x: cute.Tensor,
    amax: cute.Tensor,
    y: cute.Tensor,
    rows: Int64,
    row_pieces: Uint32,
    down: cute.FastDivmodDivisorV2,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, chunks of one matrix). The mode says the scope too."""
    how, tile, row_scope = scaling.of(variant), variant.mode.row.tile, variant.mode.scope == Scope.ROW
    thread, _, _ = cute.arch.thread_idx()
    matrix, matrix_scope, chunk, _ = placement.dense(down)
    chunk = Uint32(Int64(chunk))  # straight from divmod it would stay signed, even as a Uint32
    count = _pieces(variant)
    per_cta = THREADS * count
    repeated = how.whole_blocks and not tile
    # of each scope that the CTA meets: one matrix, or rows of one block, the first and the last one shared
    max_scopes = per_cta * WORDS * operand.per_word(variant.dtype) // how.block + 1
    scopes = how.scopes(max_scopes if row_scope else 1, round_trip=True)

    base = matrix * rows * row_pieces
    inside = []  # piece indices within the matrix
    if const_expr(tile):
        warp = chunk * Uint32(WARPS) + Uint32(thread // 32)
        groups = (row_pieces + Uint32(HALF_WARP - 1)) // Uint32(HALF_WARP)
        row = Int64(warp // groups) * how.block + thread % 32 // HALF_WARP
        column = warp % groups * Uint32(HALF_WARP) + Uint32(thread % HALF_WARP)
        active = (column < row_pieces) & (row < rows)
        inside = [(row + 2 * j) * row_pieces + column for j in range(count)]
        actives = [active] * count
    else:
        first = Int64(chunk) * per_cta + thread
        inside = [first + j * THREADS for j in range(count)]
        actives = [i < rows * row_pieces for i in inside]

    pieces = [memory.registers(WORDS) for _ in range(count)]
    if const_expr(not repeated):
        for j in cutlass.range_constexpr(count):
            if actives[j]:
                cute.autovec_copy(x[(base + inside[j], None)], pieces[j])
    loaded = [[pieces[j][w] for w in range(WORDS)] for j in range(count)]

    first_row = Uint32(0)
    if const_expr(row_scope):
        first_row = chunk * Uint32(per_cta) // row_pieces
        last_row = (chunk * Uint32(per_cta) + Uint32(per_cta - 1)) // row_pieces
        scope_count = Int32(cutlass.min(Int64(last_row) + 1, rows)) - Int32(first_row)
        for scope in cutlass.range(thread, scope_count, THREADS, unroll=1):
            how.open_scope(scopes, scope, amax, matrix_scope * rows + first_row + scope, emax)
    elif thread == 0:
        how.open_scope(scopes, 0, amax, matrix_scope, emax)
    cute.arch.sync_threads()

    sharing = how.block // (WORDS * operand.per_word(variant.dtype))  # lanes that share a block
    neighbours = [1 << i for i in range(sharing.bit_length() - 1)]
    if const_expr(repeated):
        for i in cutlass.range(REPEATS, unroll=1):
            piece = Int64(chunk) * per_cta + (i * THREADS + thread) * sharing
            if piece < rows * row_pieces:
                words = memory.registers(WORDS * sharing)
                cute.autovec_copy(_block(x, base + piece, sharing), words)
                scope = Uint32(piece) // row_pieces - first_row if const_expr(row_scope) else 0
                block = [words[w] for w in range(WORDS * sharing)]
                results = how.round_trip(block, how.scale([block], [], scopes, scope))
                memory.store(results, _block(y, base + piece, sharing))
    else:
        if const_expr(tile):
            strips = scaling.Strips(loaded, neighbours, [HALF_WARP])
            found = [how.scale(loaded, [*neighbours, HALF_WARP], scopes, tile=strips)] * count
        else:
            found = []
            for j in cutlass.range_constexpr(count):
                scope = Uint32(inside[j]) // row_pieces - first_row if const_expr(row_scope) else 0
                found.append(how.scale([loaded[j]], neighbours, scopes, scope))
        for j in cutlass.range_constexpr(count):
            if actives[j]:
                memory.store(how.round_trip(loaded[j], found[j]), y[(base + inside[j], None)])


def _block(pieces, first, count: int):
    """The words of `count` pieces."""
    return cute.make_tensor(pieces[(first, None)].iterator, cute.make_layout(count * WORDS))


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
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Quantize and dequantize `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, columns a multiple of 16.
        amax: (batch,), or (batch, rows) if row_scope.
        y: like x.
        batch: at least 1.
        rows: at least 1, a multiple of 16 with tiles.
        columns: at least 16; a matrix has fewer than 2**32 - 4096 pieces of 16 bytes.
        row_scope: 1 where each row has its own amax, else 0; never with tiles.
        emax: the largest block scale.
        variant: what to compile.
    """
    row_pieces = columns // (WORDS * operand.per_word(variant.dtype))
    if const_expr(variant.mode.row.tile):
        block = variant.mode.format.block
        down = (rows // block * ((row_pieces + HALF_WARP - 1) // HALF_WARP) + WARPS - 1) // WARPS
    else:
        per_cta = THREADS * _pieces(variant)
        down = (rows * row_pieces + per_cta - 1) // per_cta
    one_scope = variant.mode.row.tile or not variant.mode.format.has_amax
    for scope in (Scope.TENSOR,) if const_expr(one_scope) else (Scope.TENSOR, Scope.ROW):
        if row_scope == int(scope == Scope.ROW):
            _kernel(
                memory.groups(x, Uint32, WORDS),
                amax,
                memory.groups(y, Uint32, WORDS),
                rows,
                Uint32(row_pieces),
                placement.divisor(down),
                emax,
                replace(variant, mode=replace(variant.mode, scope=scope)),
            ).launch(grid=[batch * down, 1, 1], block=[THREADS, 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, y = (memory.fake(operand.word_type(variant.dtype), 16) for _ in range(2))
    return x, memory.fake(Float32, 4), y, Int64(1), Int64(1), Int64(variant.mode.format.block), Int32(0), Float32(0)
