"""amax: the largest magnitude of each segment of a flat buffer, NaN if the segment holds one (contract section 2).

A segment is a matrix (tensor scope) or a row (row scope). Two forms: one warp per segment, or, for segments
long enough to share, one CTA per chunk and an integer atomic max on the float32 bits, which the caller has
set to zero. Reads 2 bytes per element (float32: 4) once and is bound by that.

Magnitudes are compared as integers: the order is that of the floats, with every NaN above infinity.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint16, Uint32, const_expr

from jax_nvfp4.kernels.primitives import memory

THREADS = 256
LOADS = 8  # 16-byte loads in flight per thread
NAN_BITS = 0x7FC00000
INF_BITS = 0x7F800000


def _magnitude(word: Uint32, half: cutlass.Constexpr) -> Uint32:
    return word & Uint32(0x7FFF7FFF if half else 0x7FFFFFFF)


def _max(a: Uint32, b: Uint32, half: cutlass.Constexpr) -> Uint32:
    """Integer maximum, per 16-bit half for the 16-bit dtypes."""
    op = "max.u16x2" if half else "max.u32"
    return cute.arch.inline_ptx(
        # Packed operations take no immediate, so a constant operand needs the register.
        f"{{ .reg .b32 a; mov.b32 a, {{$r0}}; {op} {{$w0}}, a, {{$r1}}; }}",
        write_only_types=[Uint32],
        read_only_args=[a, b],
    )


def _warp_max(a: Uint32) -> Uint32:
    return cute.arch.inline_ptx(
        "redux.sync.max.u32 {$w0}, {$r0}, 0xffffffff;", write_only_types=[Uint32], read_only_args=[a]
    )


@cute.jit
def _float_bits(magnitude: Uint32, dtype: cutlass.Constexpr) -> Uint32:
    """Float32 bits of a magnitude given in the bits of `dtype`, NaN canonical."""
    bits = magnitude
    if const_expr(dtype == "bfloat16"):
        bits = magnitude << Uint32(16)
    elif const_expr(dtype == "float16"):
        wide = cute.arch.inline_ptx(
            "{ .reg .b16 h; cvt.u16.u32 h, {$r0}; cvt.f32.f16 {$w0}, h; }",
            write_only_types=[Float32],
            read_only_args=[magnitude],
        )
        bits = wide.bitcast(Uint32)
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
    half: cutlass.Constexpr,
) -> Uint32:
    """A thread's share of the maximum over the elements [start, stop).

    It reads the 16-byte vectors [first, last), `stride` threads apart, and with `edges` also the elements
    that no whole vector inside the segment holds.
    """
    width = 8 if const_expr(half) else 4
    vectors = cute.make_tensor(
        cute.recast_ptr(x.iterator, dtype=Uint32), cute.make_layout((cute.size(x) // width, 4), stride=(4, 1))
    )
    result = Uint32(0)
    if edges:
        head = cutlass.min((start + width - 1) // width * width, stop)
        tail = cutlass.max(stop // width * width, head)
        if start + lane < head:
            result = _max(result, _magnitude(Uint32(x[start + lane]), half), half)
        if tail + lane < stop:
            result = _max(result, _magnitude(Uint32(x[tail + lane]), half), half)
    for base in cutlass.range(first + lane, last, stride * LOADS, unroll=1):
        words = [cute.make_rmem_tensor(4, Uint32) for _ in range(LOADS)]
        for j in cutlass.range_constexpr(LOADS):
            # Past the end: read the last vector once more, which a maximum does not notice.
            cute.autovec_copy(vectors[(cutlass.min(base + j * stride, last - 1), None)], words[j])
        for j in cutlass.range_constexpr(LOADS):
            for w in cutlass.range_constexpr(4):
                result = _max(result, _magnitude(words[j][w], half), half)
    if const_expr(half):
        result = _max(result & Uint32(0xFFFF), result >> Uint32(16), half)
    return result


@cute.kernel
def _per_warp(x: cute.Tensor, out: cute.Tensor, segments: Int64, length: Int64, dtype: cutlass.Constexpr):
    half = dtype != "float32"
    width = 8 if const_expr(half) else 4
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    segment = Int64(block) * (THREADS // 32) + thread // 32
    if segment < segments:
        start = segment * length
        stop = start + length
        lane = Int64(thread % 32)
        first = (start + width - 1) // width
        share = _segment_max(x, start, stop, first, stop // width, lane, cutlass.Boolean(True), 32, half)
        bits = _float_bits(_warp_max(share), dtype)
        if lane == 0:
            out[segment] = bits


@cute.kernel
def _per_chunk(x: cute.Tensor, out: cute.Tensor, length: Int64, chunk: Int64, chunks: Int32, dtype: cutlass.Constexpr):
    half = dtype != "float32"
    width = 8 if const_expr(half) else 4
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    maxima = cute.make_tensor(cute.arch.alloc_smem(Uint32, THREADS // 32), cute.make_layout(THREADS // 32))
    segment = block // chunks
    index = block % chunks
    start = Int64(segment) * length
    stop = start + length
    first = (start + width - 1) // width + index * chunk
    last = cutlass.min(first + chunk, stop // width)
    share = _segment_max(x, start, stop, first, last, Int64(thread), index == 0, THREADS, half)
    share = _warp_max(share)
    if thread % 32 == 0:
        maxima[thread // 32] = share
    cute.arch.sync_threads()
    if thread < 32:
        share = _warp_max(maxima[thread % (THREADS // 32)])
        if thread == 0:
            bits = _float_bits(share, dtype)
            cute.arch.inline_ptx("red.global.max.u32 [{$r0}], {$r1};", read_only_args=[out.iterator + segment, bits])


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    out: cute.Tensor,
    segments: Int64,
    length: Int64,
    chunk: Int64,
    dtype: cutlass.Constexpr,
    split: cutlass.Constexpr,
):
    """Write the amax of `segments` contiguous segments of `length` elements.

    Args:
        stream: where to launch.
        x: elements, in storage words.
        out: float32 bits, one per segment; all zero beforehand if `split`.
        segments: how many; at least 1.
        length: elements per segment; at least 1.
        chunk: 16-byte vectors per CTA if `split`, else unused.
        dtype: float dtype of the elements.
        split: whether several CTAs share a segment.
    """
    if const_expr(split):
        width = 8 if const_expr(dtype != "float32") else 4
        chunks = cutlass.max((length // width + chunk - 1) // chunk, Int64(1))
        _per_chunk(x, out, length, chunk, Int32(chunks), dtype).launch(
            grid=[segments * chunks, 1, 1], block=[THREADS, 1, 1], stream=stream
        )
    else:
        warps = THREADS // 32
        _per_warp(x, out, segments, length, dtype).launch(
            grid=[(segments + warps - 1) // warps, 1, 1], block=[THREADS, 1, 1], stream=stream
        )


def arguments(*, dtype: str, hopper: bool, split: bool) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    del hopper  # the same instructions everywhere
    word = Uint32 if dtype == "float32" else Uint16
    x = memory.fake(word, 16)
    out = memory.fake(Uint32, 4)
    return x, out, Int64(1), Int64(1), Int64(1), dtype, split
