"""quantize_columns: blocks along the rows, output transposed, nearest or stochastic (sections 2, 3, 5, 6, 8).

The bytes of quantize_rows for the transpose of x, from one read of x: a CTA takes a tile of x, a thread four
blocks of it (see primitives/strip.py), and shared memory turns codes and scales, so that the codes of 8 blocks of
a column leave together. Blocks may pass the random Hadamard transform first, in registers. Moves 2.5625 bytes
per element (float32: 4.5625; MXFP8: 0.46875 more) and is bound by that; the transform, stochastic rounding and
four-over-six are bound by issue slots on sm_90. Any number of columns; loads are scalar unless a multiple of 4.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32, const_expr

from jax_nvfp4.kernels.primitives import memory, operand, philox, placement, rht, scaling, strip, swizzle


@cute.kernel
def _kernel(
    x: cute.Tensor,
    amax: cute.Tensor,
    seed: cute.Tensor,
    origin: cute.Tensor,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    strips: Int32,
    columns: Int32,
    across: cute.FastDivmodDivisorV2,
    down: cute.FastDivmodDivisorV2,
    swizzled: Int32,
    signs: Uint32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, down, across) tiles."""
    how, dtype, stochastic = scaling.of(variant), variant.dtype, variant.mode.col.stochastic
    thread, _, _ = cute.arch.thread_idx()
    scopes = how.scopes()
    turned = strip.shared_codes(how.code_words)
    staged = cute.make_tensor(
        cute.arch.alloc_smem(Uint8, strip.TILE_COLUMNS * strip.TILE_STRIPS, alignment=4),
        cute.make_layout((strip.TILE_COLUMNS, strip.TILE_STRIPS), stride=(strip.TILE_STRIPS, 1)),
    )

    matrix, scope, tile_row, tile_column = placement.dense(down, across)
    first_strip, first_column = tile_row * strip.TILE_STRIPS, tile_column * strip.TILE_COLUMNS
    own_strip, lane = thread // 32, thread % 32
    column = first_column + lane * strip.COLUMNS
    words = strip.registers(dtype, how.block)
    if (first_strip + own_strip < strips) & (column < columns):
        first = (matrix * strips + first_strip + own_strip) * how.block * columns + column
        if columns % strip.COLUMNS == 0:
            strip.load_vectors(x, first, Int64(columns), words, dtype)
        else:
            strip.load_elements(x, first, Int64(columns), columns - 1 - column, words, dtype)
    if thread == 0:
        how.open_scope(scopes, 0, amax, scope, emax)
    if const_expr(stochastic):
        stream = philox.shared_stream()
        if thread == strip.THREADS - 1:
            philox.open_stream(stream, seed, origin, scope)
    cute.arch.sync_threads()

    if const_expr(rht.is_wanted(variant)):
        quarters = rht.factors(signs)
    for i in cutlass.range_constexpr(strip.COLUMNS):
        block = strip.columns(words, dtype)[i]
        if const_expr(rht.is_wanted(variant)):
            block = rht.transform(block, quarters, dtype)
        scale = how.scale([block], [], scopes)
        random = None
        if const_expr(stochastic):
            random = philox.draw(stream, philox.ALONG_COLUMNS, first_strip + own_strip, column + i)
        memory.store(how.codes(block, scale, random), turned[(i, lane, own_strip, None)])
        byte = scale.byte
        if (first_strip + own_strip >= strips) | (column + i >= columns):
            byte = Uint32(0)  # padding of swizzled scales
        staged[lane * strip.COLUMNS + i, own_strip] = Uint8(byte)
    cute.arch.sync_threads()

    strip.store_codes(turned, codes, matrix, columns, strips, first_column, first_strip, thread)
    staged_words = cute.make_tensor(
        cute.recast_ptr(staged.iterator, dtype=Uint32), cute.make_layout((strip.TILE_COLUMNS, 2), stride=(2, 1))
    )
    swizzle.store_two_tiles(
        staged_words, block_scales, matrix, columns, strips, first_column, first_strip, swizzled, thread
    )


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
    swizzled: Int32,
    signs: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Quantize the transposes of `batch` matrices of (rows, columns).

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, rows a multiple of 16.
        amax: (batch,).
        seed: (batch, 2) Philox keys; never read unless stochastic.
        origin: (batch, 3) global batch word, row and column of each matrix; never read unless stochastic.
        codes: (batch, columns, rows/2) bytes.
        block_scales: (batch, columns, rows/16) bytes, or the swizzled ones, padding included.
        batch: at least 1.
        rows: at least 16.
        columns: at least 1.
        swizzled: 1 for swizzled scales, else 0.
        signs: the sign mask of the random Hadamard transform, if the variant has one.
        emax: the largest block scale.
        variant: what to compile.
    """
    how = scaling.of(variant)
    strips = Int32(rows // how.block)
    across = Int32((columns + strip.TILE_COLUMNS - 1) // strip.TILE_COLUMNS)
    down = (strips + strip.TILE_STRIPS - 1) // strip.TILE_STRIPS
    _kernel(
        x,
        amax,
        seed,
        origin,
        memory.groups(codes, Uint32, how.code_words),
        block_scales,
        strips,
        Int32(columns),
        placement.divisor(across),
        placement.divisor(down),
        swizzled,
        Uint32(signs),
        emax,
        variant,
    ).launch(grid=[batch * across * down, 1, 1], block=[strip.THREADS, 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, amax = memory.fake(operand.word_type(variant.dtype), 16), memory.fake(Float32, 4)
    seed, origin, codes, block_scales = (memory.fake(*fake) for fake in [(Uint32, 4)] * 2 + [(Uint8, 16)] * 2)
    sizes = Int64(1), Int64(variant.mode.format.block), Int64(1)
    return x, amax, seed, origin, codes, block_scales, *sizes, Int32(0), Int32(0), Float32(0)
