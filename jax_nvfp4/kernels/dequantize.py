"""dequantize: codes, block scales and amax to floats; unscaled, without the amax (contract section 2, steps 7, 8).

A thread makes pieces of 16 bytes, neighbouring lanes neighbouring pieces. Moves 2.5625 bytes per element
(float32: 4.5625) and is bound by that, mostly by the stores.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, const_expr

from jax_nvfp4.formats import BLOCK
from jax_nvfp4.kernels.primitives import e4m3, memory, operand, ptx, scales

THREADS = 256
GRID_Y = 65535  # what CUDA allows
WORDS = 4  # per piece
PIECES = 4  # per thread


def _elements(dtype: str) -> int:
    """Elements per piece."""
    return BLOCK * WORDS // operand.words_per_block(dtype)


def _e2m1_values(codes, count: int) -> list:
    """The values of the low `count` codes (4 or 8) of a word as Float32.

    Three bits of a code look up the high byte of its float16 magnitude; the low byte is always zero.
    """
    magnitudes = codes & Uint32(0x77777777)
    raised = codes << Uint32(4)  # signs of the even codes to the top of their bytes, where those of the odd ones are
    halves = []
    for pair in range(count // 2):
        if pair % 2 == 0:
            four = _lookup(magnitudes >> Uint32(8 * pair))
        word = ptx.permute(four, Uint32(0), 0x3424 if pair % 2 else 0x1404)
        signs = ptx.permute(raised, codes, (4 + pair) << 12 | pair << 4)
        halves.append(word | (signs & Uint32(0x80008000)))
    return operand.widen(halves, "float16")


def _lookup(selector):
    """High bytes of the float16 values of 0, 0.5, 1, 1.5, 2, 3, 4, 6 that the low four nibbles name."""
    return cute.arch.inline_ptx(
        "prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};",
        write_only_types=[Uint32],
        read_only_args=[Uint32(0x3E3C3800), Uint32(0x46444240), selector],
    )


@cute.kernel
def _kernel(
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    amax: cute.Tensor,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    row_pieces: Uint32,
    row_scope: Int32,
    dtype: cutlass.Constexpr,
    unscaled: cutlass.Constexpr,
):
    """The grid is (chunks of one matrix, batch modulo GRID_Y, the rest of batch)."""
    thread, _, _ = cute.arch.thread_idx()
    chunk, batch_low, batch_high = cute.arch.block_idx()
    matrix = Int64(batch_high) * GRID_Y + batch_low
    first = Int64(chunk) * (THREADS * PIECES) + thread
    left = cutlass.min(rows * row_pieces - first, Int64(THREADS * PIECES))
    if matrix >= batch:
        left = Int64(0)
    left = Int32(left)

    # views of this thread's pieces: one address each, the rest are constant offsets
    start = matrix * rows * row_pieces + first
    per_block = BLOCK // _elements(dtype)
    my_codes = cute.make_tensor(codes.iterator + start, cute.make_layout(PIECES, stride=THREADS))
    my_scales = cute.make_tensor(
        block_scales.iterator + start // per_block, cute.make_layout(PIECES, stride=THREADS // per_block)
    )
    my_y = cute.make_tensor(y[(start, None)].iterator, cute.make_layout((PIECES, WORDS), stride=(THREADS * WORDS, 1)))
    matrix_amax = Float32(0)
    if const_expr(not unscaled):
        if (row_scope == 0) & (left > 0):
            matrix_amax = amax[matrix]
    loaded = [Uint32(0) for _ in range(PIECES)]
    bytes_ = [Uint32(0) for _ in range(PIECES)]
    for j in cutlass.range_constexpr(PIECES):
        if left > j * THREADS:
            loaded[j] = Uint32(my_codes[j])
            bytes_[j] = Uint32(my_scales[j])
    out = memory.registers(WORDS)
    for j in cutlass.range_constexpr(PIECES):
        if left > j * THREADS:
            if const_expr(unscaled):
                factor = e4m3.decode(bytes_[j])
            else:
                scope_amax = matrix_amax
                if row_scope != 0:
                    scope_amax = amax[matrix * rows + Uint32(first + j * THREADS) // row_pieces]
                factor = scales.decode_multiplier(bytes_[j], scope_amax)
            values = [ptx.mul(v, factor) for v in _e2m1_values(loaded[j], _elements(dtype))]
            words = operand.narrow(values, dtype)
            for w in cutlass.range_constexpr(WORDS):
                out[w] = words[w]
            cute.autovec_copy(out, my_y[(j, None)])


@cute.jit
def launch(
    stream: cuda.CUstream,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    amax: cute.Tensor,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_scope: Int32,
    dtype: cutlass.Constexpr,
    unscaled: cutlass.Constexpr,
):
    """Dequantize `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        codes: (batch, rows, columns/2) bytes, columns a multiple of 16.
        block_scales: (batch, rows, columns/16) bytes, linear.
        amax: (batch,), or (batch, rows) if row_scope; never read if `unscaled`.
        y: (batch, rows, columns) in storage words, 16-byte aligned.
        batch: at least 1.
        rows: at least 1.
        columns: at least 16; a matrix has fewer than 2**32 pieces of 16 bytes.
        row_scope: 1 where each row has its own amax, else 0.
        dtype: name of the float dtype of y.
        unscaled: whether to leave the amax out: y is the code times its block scale.
    """
    elements = _elements(dtype)
    row_pieces = columns // elements
    code_word = Uint16 if const_expr(dtype == "float32") else Uint32
    pieces = cute.make_tensor(
        cute.recast_ptr(codes.iterator, dtype=code_word), cute.make_layout(batch * rows * row_pieces)
    )
    _kernel(
        pieces,
        block_scales,
        amax,
        memory.groups(y, Uint32, WORDS),
        batch,
        rows,
        Uint32(row_pieces),
        row_scope,
        dtype,
        unscaled,
    ).launch(
        grid=[
            (rows * row_pieces + THREADS * PIECES - 1) // (THREADS * PIECES),
            cutlass.min(batch, Int64(GRID_Y)),
            (batch + GRID_Y - 1) // GRID_Y,
        ],
        block=[THREADS, 1, 1],
        stream=stream,
    )


def arguments(*, dtype: str, hopper: bool, unscaled: bool) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    del hopper  # the same instructions everywhere

    y = memory.fake(Uint32 if dtype == "float32" else Uint16, 16)
    sizes = Int64(1), Int64(1), Int64(BLOCK)
    return memory.fake(Uint8, 16), memory.fake(Uint8, 16), memory.fake(Float32, 4), y, *sizes, Int32(0), dtype, unscaled
