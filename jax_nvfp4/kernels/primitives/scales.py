"""The two levels of NVFP4 scaling (section 2, steps 1 to 6)."""

from __future__ import annotations

from cutlass import Float32, Uint32

from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX
from jax_nvfp4.kernels.primitives import e4m3, ptx

FLOAT32_MAX = 3.4028234663852886e38
NAN_SCALE = 0x7F


def tensor_scales(amax) -> tuple:
    """(fl(S * fl(1/6)), D) of one amax: three divisions, so once per CTA or, for row amaxes, per block."""
    one = Float32(1.0)
    scale = ptx.min_nan(ptx.div(Float32(E2M1_MAX * E4M3_MAX), amax), Float32(FLOAT32_MAX))
    scale = ptx.select_equal(amax, Float32(0.0), one, scale, Float32)
    scale = ptx.select_equal(scale, Float32(0.0), one, scale, Float32)
    return ptx.mul(scale, Float32(1 / E2M1_MAX)), ptx.reciprocal(scale)


def block_scale(block_max, scale_sixth, inverse) -> tuple:
    """(scale byte s, encode multiplier e) of one block; `scale_sixth, inverse` come from `tensor_scales`."""
    byte = e4m3.encode(ptx.mul(block_max, scale_sixth))
    return byte, encode_multiplier(byte, inverse)


def encode_multiplier(byte, inverse):
    """e of step 5 for a scale byte."""
    return ptx.min_nan(ptx.reciprocal(ptx.mul(e4m3.decode(byte), inverse)), Float32(FLOAT32_MAX))


def poison(byte, codes):
    """8 codes of a block, all of them 7 where its scale is NaN.

    An element times e is NaN only in such a block: e is never 0, so Inf does not make one.
    """
    return ptx.select_equal(byte, Uint32(NAN_SCALE), Uint32(0x77777777), codes)


def decode_multiplier(byte, amax):
    """f of step 7: what a code is multiplied by to dequantize it."""
    return ptx.mul(ptx.mul(e4m3.decode(byte), amax), Float32(1 / (E2M1_MAX * E4M3_MAX)))
