"""dequantize: codes, block scales and amax to floats (contract section 2, steps 7 and 8).

A thread makes pieces of 16 bytes, neighbouring lanes neighbouring pieces. Moves 2.5625 bytes per element
(float32: 4.5625) and is bound by that, mostly by the stores.
"""

from __future__ import annotations

from dataclasses import replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, Uint64, const_expr

from jax_nvfp4.kernels.primitives import memory, operand, placement, ptx, scaling
from jax_nvfp4.mode import Scope

THREADS = 256
WORDS = 4  # per piece
PIECES = 4  # per thread
PER_CTA = THREADS * PIECES


@cute.kernel
def _kernel(
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    amax: cute.Tensor | None,
    y: cute.Tensor,
    rows: Int64,
    row_pieces: Uint32,
    down: cute.FastDivmodDivisorV2,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, chunks of one matrix). The mode says the scope too."""
    how, elements = scaling.of(variant), WORDS * operand.per_word(variant.dtype)
    thread, _, _ = cute.arch.thread_idx()
    matrix, scope, chunk, _ = placement.dense(down)
    first = Int64(chunk) * PER_CTA + thread
    left = Int32(cutlass.min(rows * row_pieces - first, Int64(PER_CTA)))

    # views of this thread's pieces: one address each, the rest are constant offsets
    start = matrix * rows * row_pieces + first
    per_block = how.block // elements
    my_codes = cute.make_tensor(codes.iterator + start, cute.make_layout(PIECES, stride=THREADS))
    my_scales = cute.make_tensor(
        block_scales.iterator + start // per_block, cute.make_layout(PIECES, stride=THREADS // per_block)
    )
    my_y = cute.make_tensor(y[(start, None)].iterator, cute.make_layout((PIECES, WORDS), stride=(THREADS * WORDS, 1)))
    amaxes, inverse_range = [None] * PIECES, None
    if const_expr(amax is not None):
        inverse_range = how.inverse_range(emax)
        amaxes = [Float32(0)] * PIECES
        if const_expr(variant.mode.scope == Scope.ROW):
            for j in cutlass.range_constexpr(PIECES):
                if left > j * THREADS:
                    amaxes[j] = amax[scope * rows + Uint32(first + j * THREADS) // row_pieces]
        elif left > 0:
            amaxes = [amax[scope]] * PIECES
    wide = codes.element_type.width > 32
    loaded = [Uint64(0) if const_expr(wide) else Uint32(0) for _ in range(PIECES)]
    bytes_ = [Uint32(0) for _ in range(PIECES)]
    for j in cutlass.range_constexpr(PIECES):
        if left > j * THREADS:
            loaded[j] = my_codes[j] if const_expr(wide) else Uint32(my_codes[j])
            bytes_[j] = Uint32(my_scales[j])
    for j in cutlass.range_constexpr(PIECES):
        if left > j * THREADS:
            factor = how.factor(bytes_[j], amaxes[j], inverse_range)
            values = [ptx.mul(v, factor) for v in how.values(loaded[j], elements)]
            memory.store(operand.narrow(values, variant.dtype), my_y[(j, None)])


@cute.jit
def launch(
    stream: cuda.CUstream,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    amax: cute.Tensor | None,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_scope: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Dequantize `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        codes: (batch, rows, columns/2) bytes, columns a multiple of 16.
        block_scales: (batch, rows, columns/16) bytes, linear.
        amax: (batch,), or (batch, rows) if row_scope; None leaves it out, and y is the code times its block scale.
        y: (batch, rows, columns) in storage words, 16-byte aligned.
        batch: at least 1.
        rows: at least 1.
        columns: at least 16; a matrix has fewer than 2**32 pieces of 16 bytes.
        row_scope: 1 where each row has its own amax, else 0.
        emax: the largest block scale; never used without an amax.
        variant: what to compile.
    """
    elements = WORDS * operand.per_word(variant.dtype)
    row_pieces = columns // elements
    code_word = {2: Uint16, 4: Uint32, 8: Uint64}[elements // variant.mode.format.codes_per_byte]
    if const_expr(not variant.mode.format.has_amax):
        amax = None
    pieces = cute.make_tensor(
        cute.recast_ptr(codes.iterator, dtype=code_word), cute.make_layout(batch * rows * row_pieces)
    )
    down = (rows * row_pieces + PER_CTA - 1) // PER_CTA
    for scope in (Scope.TENSOR,) if const_expr(amax is None) else (Scope.TENSOR, Scope.ROW):
        if row_scope == int(scope == Scope.ROW):
            _kernel(
                pieces,
                block_scales,
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
    codes, block_scales, amax = memory.fake(Uint8, 16), memory.fake(Uint8, 16), memory.fake(Float32, 4)
    y = memory.fake(operand.word_type(variant.dtype), 16)
    return codes, block_scales, amax, y, Int64(1), Int64(1), Int64(variant.mode.format.block), Int32(0), Float32(0)
