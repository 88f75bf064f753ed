"""quantize_tiles: 16x16 blocks, nearest (contract section 4): codes of x, of its transpose, or of both.

One read of x serves both outputs, whose codes and scales agree element for element. The work is laid out as
in quantize_columns (see primitives/strip.py): four lanes own a 16x16 tile and share its maximum by shuffles.
The four codes of a row that a thread holds are two bytes of the row output, and those of a column 8 bytes of
the column output; both leave through shared memory. Moves 2 bytes per element (float32: 4) plus 0.5625 per
output and is bound by that.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, const_expr

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import memory, operand, placement, ptx, scaling, strip, swizzle

BLOCK = NVFP4_FORMAT.block
LANES = BLOCK // strip.COLUMNS  # that own a 16x16 tile
TILE_ROWS = strip.TILE_STRIPS * BLOCK
TILES_ACROSS = strip.TILE_COLUMNS // BLOCK  # 16x16 tiles in a row of a CTA's tile


def _row_codes(block_codes, half: int) -> list:
    """The codes of rows 8*half to 8*half + 7 of a strip, 16 bits in a Uint32 each, from those of its columns."""
    pairs = []
    for left, right in (block_codes[:2], block_codes[2:]):
        low, high = left[half], right[half]
        even = (low & Uint32(0x0F0F0F0F)) | ((high & Uint32(0x0F0F0F0F)) << Uint32(4))
        odd = ((low >> Uint32(4)) & Uint32(0x0F0F0F0F)) | (high & Uint32(0xF0F0F0F0))
        pairs.append((even, odd))
    rows = []
    for i in range(4):
        rows += [ptx.permute(pairs[0][odd], pairs[1][odd], 0x40 + 0x11 * i) for odd in (0, 1)]
    return rows


@cute.kernel
def _kernel(
    x: cute.Tensor,
    amax: cute.Tensor,
    row_codes: cute.Tensor,
    row_scales: cute.Tensor,
    column_codes: cute.Tensor,
    column_scales: cute.Tensor,
    strips: Int32,
    columns: Int32,
    across: cute.FastDivmodDivisorV2,
    down: cute.FastDivmodDivisorV2,
    row_swizzled: Int32,
    column_swizzled: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """The grid is flat over (batch, down, across) tiles of a CTA."""
    how, dtype, mode = scaling.of(variant), variant.dtype, variant.mode
    thread, _, _ = cute.arch.thread_idx()
    scopes = how.scopes()
    by_strip, by_block = (
        cute.make_tensor(
            cute.arch.alloc_smem(Uint8, strip.TILE_STRIPS * TILES_ACROSS, alignment=4),
            cute.make_layout((strip.TILE_STRIPS, TILES_ACROSS), stride=stride),
        )
        for stride in ((TILES_ACROSS, 1), (1, strip.TILE_STRIPS))
    )

    matrix, scope, tile_row, tile_column = placement.dense(down, across)
    first_strip, first_column = tile_row * strip.TILE_STRIPS, tile_column * strip.TILE_COLUMNS
    own_strip, lane = thread // 32, thread % 32
    column = first_column + lane * strip.COLUMNS
    active = (first_strip + own_strip < strips) & (column < columns)
    words = strip.registers(dtype, BLOCK)
    if active:
        first = (matrix * strips + first_strip + own_strip) * BLOCK * columns + column
        strip.load_vectors(x, first, Int64(columns), words, dtype)
    if thread == 0:
        how.open_scope(scopes, 0, amax, scope, emax)
    cute.arch.sync_threads()

    blocks = strip.columns(words, dtype)
    lanes = [1 << i for i in range(LANES.bit_length() - 1)]
    scale = how.scale(blocks, lanes, scopes, tile=scaling.Strips(strip.rows(words, dtype), lanes, []))
    block_codes = [how.codes(block, scale) for block in blocks]
    byte = scale.byte
    if not active:
        byte = Uint32(0)  # padding of swizzled scales
    if lane % LANES == 0:
        by_strip[own_strip, lane // LANES] = Uint8(byte)
        by_block[own_strip, lane // LANES] = Uint8(byte)
    if const_expr(mode.row is not None):
        by_row = cute.make_tensor(
            cute.arch.alloc_smem(Uint16, TILE_ROWS * 32, alignment=16),
            cute.make_layout((TILE_ROWS, 32), stride=(32, 1)),
        )
        for half in cutlass.range_constexpr(2):
            codes = _row_codes(block_codes, half)
            for r in cutlass.range_constexpr(8):
                by_row[own_strip * BLOCK + half * 8 + r, lane] = Uint16(codes[r])
    if const_expr(mode.col is not None):
        turned = strip.shared_codes(how.code_words)
        for i in cutlass.range_constexpr(strip.COLUMNS):
            memory.store(block_codes[i], turned[(i, lane, own_strip, None)])
    cute.arch.sync_threads()

    if const_expr(mode.row is not None):
        row_words = cute.make_tensor(
            cute.recast_ptr(by_row.iterator, dtype=Uint32),
            cute.make_layout((TILE_ROWS, TILES_ACROSS, 2), stride=(16, 2, 1)),
        )
        for i in cutlass.range_constexpr(TILE_ROWS * TILES_ACROSS // strip.THREADS):
            own_row, own_block = thread // TILES_ACROSS + i * (strip.THREADS // TILES_ACROSS), thread % TILES_ACROSS
            row, block = first_strip * BLOCK + own_row, first_column // BLOCK + own_block
            if (row < strips * BLOCK) & (block < columns // BLOCK):
                index = (matrix * strips * BLOCK + row) * (columns // BLOCK) + block
                cute.autovec_copy(row_words[(own_row, own_block, None)], row_codes[(index, None)])
        swizzle.store_two_tiles(
            _replicated(by_strip),
            row_scales,
            matrix,
            strips * BLOCK,
            columns // BLOCK,
            first_strip * BLOCK,
            first_column // BLOCK,
            row_swizzled,
            thread,
        )
    if const_expr(mode.col is not None):
        strip.store_codes(turned, column_codes, matrix, columns, strips, first_column, first_strip, thread)
        swizzle.store_two_tiles(
            _replicated(by_block),
            column_scales,
            matrix,
            columns,
            strips,
            first_column,
            first_strip,
            column_swizzled,
            thread,
        )


def _replicated(tile_bytes):
    """The scales of 8x8 tiles, with four neighbours in a word, as (128, 2) words: each stands for 16 rows."""
    return cute.make_tensor(
        cute.recast_ptr(tile_bytes.iterator, dtype=Uint32),
        cute.make_layout(((BLOCK, strip.TILE_STRIPS), 2), stride=((0, 2), 1)),
    )


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    amax: cute.Tensor,
    row_codes: cute.Tensor,
    row_scales: cute.Tensor,
    column_codes: cute.Tensor,
    column_scales: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    row_swizzled: Int32,
    column_swizzled: Int32,
    emax: Float32,
    variant: cutlass.Constexpr,
):
    """Quantize `batch` matrices of (rows, columns), their transposes, or both.

    Args:
        stream: where to launch.
        x: (batch, rows, columns) in storage words; 16-byte aligned, rows and columns multiples of 16.
        amax: (batch,).
        row_codes: (batch, rows, columns/2) bytes; never written without a row output.
        row_scales: (batch, rows, columns/16) bytes, or the swizzled ones, padding included.
        column_codes: (batch, columns, rows/2) bytes; never written without a column output.
        column_scales: (batch, columns, rows/16) bytes, or the swizzled ones, padding included.
        batch: at least 1.
        rows: at least 16.
        columns: at least 16.
        row_swizzled: 1 for swizzled row scales, else 0.
        column_swizzled: 1 for swizzled column scales, else 0.
        emax: the largest block scale.
        variant: what to compile.
    """
    strips = Int32(rows // BLOCK)
    across = Int32((columns + strip.TILE_COLUMNS - 1) // strip.TILE_COLUMNS)
    down = (strips + strip.TILE_STRIPS - 1) // strip.TILE_STRIPS
    _kernel(
        x,
        amax,
        memory.groups(row_codes, Uint32, 2),
        row_scales,
        memory.groups(column_codes, Uint32, 2),
        column_scales,
        strips,
        Int32(columns),
        placement.divisor(across),
        placement.divisor(down),
        row_swizzled,
        column_swizzled,
        emax,
        variant,
    ).launch(grid=[batch * across * down, 1, 1], block=[strip.THREADS, 1, 1], stream=stream)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    x, amax = memory.fake(operand.word_type(variant.dtype), 16), memory.fake(Float32, 4)
    return (
        x,
        amax,
        *(memory.fake(Uint8, 16) for _ in range(4)),
        Int64(1),
        Int64(BLOCK),
        Int64(BLOCK),
        Int32(0),
        Int32(0),
        Float32(0),
    )
