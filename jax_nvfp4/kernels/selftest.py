"""selftest: the primitives alone, one element or draw per thread, for exhaustive tests and the doctor.

Not built for speed. Each form runs the device function that the quantize kernels use.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, Uint8, Uint32, const_expr

from jax_nvfp4.formats import BLOCK
from jax_nvfp4.kernels.primitives import e2m1, e4m3, memory, philox, ptx, scales

THREADS = 256
COUNTER_AND_KEY = 6  # words


@cute.kernel
def _kernel(
    x: cute.Tensor,
    out: cute.Tensor,
    count: Int64,
    e2m1_codes: cutlass.Constexpr,
    e4m3_bytes: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    chunk, _, _ = cute.arch.block_idx()
    i = Int64(chunk) * THREADS + thread
    if i < count:
        if const_expr(e2m1_codes):
            value = x[i]
            # the scale of a block that holds a NaN is NaN
            byte = e4m3.encode(ptx.from_bits(value))
            codes, rest = e2m1.encode_block([value] * BLOCK, Float32(1.0), byte, "float32", hopper)
            code = codes & Uint32(0xF)
            if (codes != code * Uint32(0x11111111)) | (rest != codes):
                code = Uint32(0xFF)
            out[i] = Uint8(code)
        elif const_expr(e4m3_bytes):
            byte = e4m3.encode(ptx.from_bits(x[i]))
            if (e4m3.encode(e4m3.decode(byte)) != byte) & (byte & Uint32(0x7F) != Uint32(scales.NAN_SCALE)):
                byte = Uint32(0xFF)
            out[i] = Uint8(byte)
        else:
            words = [x[i * COUNTER_AND_KEY + j] for j in range(COUNTER_AND_KEY)]
            draw = memory.registers(4)
            draw[0], draw[1], draw[2], draw[3] = philox.philox(words[:4], philox.round_keys(words[4:]))
            cute.autovec_copy(draw, memory.groups(out, Uint32, 4)[(i, None)])


@cute.jit
def launch(
    stream: cuda.CUstream,
    x: cute.Tensor,
    out: cute.Tensor,
    count: Int64,
    e2m1_codes: cutlass.Constexpr,
    e4m3_bytes: cutlass.Constexpr,
    hopper: cutlass.Constexpr,
):
    """Run one primitive on `count` inputs.

    Args:
        stream: where to launch.
        x: float32 bits, or four words of counter and two of key per draw.
        out: one byte per float32, or the 16 bytes of a draw. 0xFF: the primitive contradicts itself.
        count: how many, at least 1.
        e2m1_codes: whether to make E2M1 codes, one per byte.
        e4m3_bytes: whether to make E4M3 bytes. Philox draws if neither.
        hopper: whether to compile the sm_90 form.
    """
    _kernel(x, out, count, e2m1_codes, e4m3_bytes, hopper).launch(
        grid=[(count + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def arguments(*, dtype: str, hopper: bool, e2m1_codes: bool, e4m3_bytes: bool) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    del dtype  # float32, or words

    return memory.fake(Uint32, 16), memory.fake(Uint8, 16), Int64(1), e2m1_codes, e4m3_bytes, hopper
