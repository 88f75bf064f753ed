"""selftest: the primitives alone, one element or draw per thread, for exhaustive tests and the doctor.

Not built for speed. Each form runs the device function that the quantize kernels use.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32, const_expr

from jax_nvfp4.kernels.primitives import e4m3, memory, philox, ptx, scaling

THREADS = 256
COUNTER_AND_KEY = 6  # words
E2M1, E4M3, PHILOX = range(3)
"""What `launch` runs."""


@cute.kernel
def _kernel(x: cute.Tensor, out: cute.Tensor, count: Int64, what: cutlass.Constexpr, variant: cutlass.Constexpr):
    how = scaling.of(variant)
    thread, _, _ = cute.arch.thread_idx()
    chunk, _, _ = cute.arch.block_idx()
    i = Int64(chunk) * THREADS + thread
    if i < count:
        if const_expr(what == E2M1):
            value = x[i]
            # the scale of a block that holds a NaN is NaN
            scale = scaling.Scale(e4m3.encode(ptx.from_bits(value)), Float32(1.0))
            codes, rest = how.codes([value] * how.block, scale)
            code = codes & Uint32(0xF)
            if (codes != code * Uint32(0x11111111)) | (rest != codes):
                code = Uint32(0xFF)
            out[i] = Uint8(code)
        elif const_expr(what == E4M3):
            byte = e4m3.encode(ptx.from_bits(x[i]))
            if (e4m3.encode(e4m3.decode(byte)) != byte) & (byte & Uint32(0x7F) != Uint32(scaling.NAN_SCALE)):
                byte = Uint32(0xFF)
            out[i] = Uint8(byte)
        else:
            words = [x[i * COUNTER_AND_KEY + j] for j in range(COUNTER_AND_KEY)]
            draw = philox.philox(words[:4], philox.round_keys(words[4:]))
            memory.store(draw, memory.groups(out, Uint32, 4)[(i, None)])


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    out: cute.Tensor,
    count: Int64,
    what: Int32,
    variant: cutlass.Constexpr,
):
    """Run one primitive on `count` inputs.

    Args:
        stream: where to launch.
        x: float32 bits, or four words of counter and two of key per draw.
        out: one byte per float32, or the 16 bytes of a draw. 0xFF: the primitive contradicts itself.
        count: how many, at least 1.
        what: E2M1 codes or E4M3 bytes, one per byte, or PHILOX draws.
        variant: what to compile.
    """
    for form in (E2M1, E4M3, PHILOX):
        if what == form:
            _kernel(x, out, count, form, variant).launch(
                grid=[(count + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1], stream=stream
            )


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    del variant  # float32, or words
    return memory.fake(Uint32, 16), memory.fake(Uint8, 16), Int64(1), Int32(E2M1)
