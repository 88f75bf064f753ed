"""amax: the largest magnitude of each segment of a flat buffer, NaN if the segment holds one (contract section 2).

A segment is a matrix (tensor scope) or a row (row scope). Two forms: one warp per segment, or, for segments
long enough to share, one CTA per chunk and an integer atomic max on the float32 bits, which the caller has
set to zero. Reads 2 bytes per element (float32: 4) once and is bound by that.

Magnitudes are compared as integers, see `operand.magnitude_bits`.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int64, Uint32, const_expr

from jax_nvfp4.kernels.primitives import memory, operand, placement, ptx

THREADS = 256
LOADS = 8  # 16-byte loads in flight per thread
NAN_BITS = 0x7FC00000
INF_BITS = 0x7F800000


def _width(dtype: str) -> int:
    """Elements in a vector of 16 bytes."""
    return 4 * operand.per_word(dtype)


def _max(largest: Uint32, word: Uint32, dtype: str) -> Uint32:
    """The larger ones of the magnitudes `largest` and those of the elements of a word."""
    return operand.max_bits(largest, operand.magnitude_bits(word, dtype), dtype)


@cute.jit
def _float_bits(magnitude: Uint32, dtype: cutlass.Constexpr) -> Uint32:
    """Float32 bits of a magnitude given in the bits of `dtype`, NaN canonical."""
    bits = ptx.bits(operand.widen([magnitude], dtype)[0])
    if bits > Uint32(INF_BITS):
        bits = Uint32(NAN_BITS)
    return bits


@cute.jit
def _segment_max(
    x: cute.Tensor,
    start: Int64,
    stop: Int64,
    first: Int64,
    last: Int64,
    lane: Int64,
    edges: cutlass.Boolean,
    stride: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
) -> Uint32:
    """A thread's share of the maximum over the elements [start, stop).

    It reads the 16-byte vectors [first, last), `stride` threads apart, and with `edges` also the elements
    that no whole vector inside the segment holds.
    """
    width = _width(dtype)
    vectors = cute.make_tensor(
        cute.recast_ptr(x.iterator, dtype=Uint32), cute.make_layout((cute.size(x) // width, 4), stride=(4, 1))
    )
    result = Uint32(0)
    if edges:
        head = cutlass.min((start + width - 1) // width * width, stop)
        tail = cutlass.max(stop // width * width, head)
        if start + lane < head:
            result = _max(result, Uint32(x[start + lane]), dtype)
        if tail + lane < stop:
            result = _max(result, Uint32(x[tail + lane]), dtype)
    for base in cutlass.range(first + lane, last, stride * LOADS, unroll=1):
        words = [cute.make_rmem_tensor(4, Uint32) for _ in range(LOADS)]
        for j in cutlass.range_constexpr(LOADS):
            # Past the end: read the last vector once more, which a maximum does not notice.
            cute.autovec_copy(vectors[(cutlass.min(base + j * stride, last - 1), None)], words[j])
        for j in cutlass.range_constexpr(LOADS):
            for w in cutlass.range_constexpr(4):
                result = _max(result, words[j][w], dtype)
    if const_expr(operand.per_word(dtype) == 2):
        result = operand.max_bits(result & Uint32(0xFFFF), result >> Uint32(16), dtype)
    return result


@cute.kernel
def _per_warp(x: cute.Tensor, out: cute.Tensor, segments: Int64, length: Int64, variant: cutlass.Constexpr):
    dtype = variant.dtype
    width = _width(dtype)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    segment = Int64(block) * (THREADS // 32) + thread // 32
    if segment < segments:
        start = segment * length
        stop = start + length
        lane = Int64(thread % 32)
        first = (start + width - 1) // width
        share = _segment_max(x, start, stop, first, stop // width, lane, cutlass.Boolean(True), 32, dtype)
        bits = _float_bits(ptx.max_of_warp(share), dtype)
        if lane == 0:
            out[segment] = bits


@cute.kernel
def _per_chunk(
    x: cute.Tensor,
    out: cute.Tensor,
    length: Int64,
    chunk: Int64,
    chunks: cute.FastDivmodDivisorV2,
    variant: cutlass.Constexpr,
):
    dtype = variant.dtype
    width = _width(dtype)
    thread, _, _ = cute.arch.thread_idx()
    segment, _, index, _ = placement.dense(chunks)
    maxima = cute.make_tensor(cute.arch.alloc_smem(Uint32, THREADS // 32), cute.make_layout(THREADS // 32))
    start = segment * length
    stop = start + length
    first = (start + width - 1) // width + Int64(index) * chunk
    last = cutlass.min(first + chunk, stop // width)
    share = _segment_max(x, start, stop, first, last, Int64(thread), index == 0, THREADS, dtype)
    share = ptx.max_of_warp(share)
    if thread % 32 == 0:
        maxima[thread // 32] = share
    cute.arch.sync_threads()
    if thread < 32:
        share = ptx.max_of_warp(maxima[thread % (THREADS // 32)])
        if thread == 0:
            ptx.raise_to(out.iterator + segment, _float_bits(share, dtype))


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    out: cute.Tensor,
    segments: Int64,
    length: Int64,
    chunk: Int64,
    variant: cutlass.Constexpr,
):
    """Write the amax of `segments` contiguous segments of `length` elements.

    Args:
        stream: where to launch.
        x: elements, in storage words.
        out: float32 bits, one per segment; all zero beforehand if several CTAs share a segment.
        segments: how many; at least 1.
        length: elements per segment; at least 1.
        chunk: 16-byte vectors per CTA where several share a segment, 0 for a warp per segment.
        variant: what to compile.
    """
    if chunk == 0:
        warps = THREADS // 32
        _per_warp(x, out, segments, length, variant).launch(
            grid=[(segments + warps - 1) // warps, 1, 1], block=[THREADS, 1, 1], stream=stream
        )
    else:
        chunks = cutlass.max((length // _width(variant.dtype) + chunk - 1) // chunk, Int64(1))
        _per_chunk(x, out, length, chunk, placement.divisor(chunks), variant).launch(
            grid=[segments * chunks, 1, 1], block=[THREADS, 1, 1], stream=stream
        )


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    return memory.fake(operand.word_type(variant.dtype), 16), memory.fake(Uint32, 4), Int64(1), Int64(1), Int64(1)
