"""amax_columns: the largest magnitude of each matrix after the random Hadamard transform of its columns (section 3).

The work is laid out as in quantize_columns: a thread transforms four blocks, a CTA reduces a tile and raises the
amax of its matrix, which the caller has set to zero. Reads 2 bytes per element (float32: 4) once.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import memory, operand, placement, ptx, rht, strip

NAN_BITS = 0x7FC00000


@cute.kernel
def _kernel(
    x: cute.Tensor,
    out: cute.Tensor,
    strips: Int32,
    columns: Int32,
    across: cute.FastDivmodDivisorV2,
    down: cute.FastDivmodDivisorV2,
    signs: Uint32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, down, across) tiles."""
    dtype, block = variant.dtype, NVFP4_FORMAT.block
    thread, _, _ = cute.arch.thread_idx()
    maxima = cute.make_tensor(cute.arch.alloc_smem(Uint32, strip.TILE_STRIPS), cute.make_layout(strip.TILE_STRIPS))
    matrix, scope, tile_row, tile_column = placement.dense(down, across)
    own_strip, lane = tile_row * strip.TILE_STRIPS + thread // 32, thread % 32
    column = tile_column * strip.TILE_COLUMNS + lane * strip.COLUMNS
    words = strip.registers(dtype, block)
    largest = Uint32(0)
    if (own_strip < strips) & (column < columns):
        first = (matrix * strips + own_strip) * block * columns + column
        if columns % strip.COLUMNS == 0:
            strip.load_vectors(x, first, Int64(columns), words, dtype)
        else:
            strip.load_elements(x, first, Int64(columns), columns - 1 - column, words, dtype)
        quarters = rht.factors(signs)
        blocks = [rht.transform(b, quarters, dtype) for b in strip.columns(words, dtype)]
        # every NaN exceeds the canonical one
        largest = ptx.min_unsigned(ptx.bits(operand.shared_max(blocks, [], dtype)), Uint32(NAN_BITS))
    largest = ptx.max_of_warp(largest)
    if lane == 0:
        maxima[thread // 32] = largest
    cute.arch.sync_threads()
    if thread < 32:
        largest = ptx.max_of_warp(maxima[thread % strip.TILE_STRIPS])
        if thread == 0:
            ptx.raise_to(out.iterator + scope, largest)


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    out: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    signs: Int32,
    variant: cutlass.Constexpr,
):
    """Raise the amax of `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, rows a multiple of 16.
        out: (batch,) float32 bits, all zero beforehand.
        batch: at least 1.
        rows: at least 16.
        columns: at least 1.
        signs: the sign mask of the transform.
        variant: what to compile.
    """
    strips = Int32(rows // NVFP4_FORMAT.block)
    across = Int32((columns + strip.TILE_COLUMNS - 1) // strip.TILE_COLUMNS)
    down = (strips + strip.TILE_STRIPS - 1) // strip.TILE_STRIPS
    _kernel(
        x,
        out,
        strips,
        Int32(columns),
        placement.divisor(across),
        placement.divisor(down),
        Uint32(signs),
        variant,
    ).launch(grid=[batch * across * down, 1, 1], block=[strip.THREADS, 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, out = memory.fake(operand.word_type(variant.dtype), 16), memory.fake(Uint32, 4)
    return x, out, Int64(1), Int64(NVFP4_FORMAT.block), Int64(1), Int32(0)
