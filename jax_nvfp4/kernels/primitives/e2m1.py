"""E2M1 codes and values (section 1), nearest and stochastic (section 6).

On sm_90 both come from one fact: over [0, 6] the code of a magnitude a is the rounding of the concave
piecewise linear curve min(2a, a + 2, a/2 + 4), clamped to 7. Each line is one FMA onto a constant so
large that the integer (or fixed point) result appears in the low mantissa bits, rounded exactly once.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.formats import E2M1_MAX
from jax_nvfp4.kernels.primitives import operand, ptx, scales

_INTEGER = 2.0**23  # float32 spacing 1: nearest rounding leaves RNE(curve) in the mantissa, ties to even
_FIXED = 2.0**15  # float32 spacing 1/256: rounding down leaves floor(256 * curve)


def encode_block(words, multiplier, byte, dtype: str, hopper: bool, random=None) -> tuple:
    """The 16 codes of a block as two words.

    Args:
        words: the block, see `operand`.
        multiplier: e of section 2, step 5.
        byte: the scale byte, NaN if any x * e is NaN.
        dtype: name of the float dtype of the elements.
        hopper: whether to use the sm_90 form.
        random: the four words of the block's draw for stochastic rounding, None for nearest.
    """
    half = len(words) // 2
    codes = []
    for i, eight in enumerate((words[:half], words[half:])):
        if random is not None:
            eight_codes = _stochastic_codes(eight, multiplier, dtype, random[2 * i : 2 * i + 2])
        elif hopper:
            eight_codes = _nearest_codes(eight, multiplier, dtype)
        else:
            eight_codes = _hardware_codes(eight, multiplier, dtype)
        codes.append(scales.poison(byte, eight_codes))
    return tuple(codes)


def _curve(a, multiply_add, base: float):
    lines = [
        ptx.bits(multiply_add(a, Float32(slope), Float32(base + offset)))
        for slope, offset in ((2.0, 0.0), (1.0, 2.0), (0.5, 4.0))
    ]
    return ptx.min_unsigned(ptx.min_unsigned(lines[0], lines[1]), lines[2])


def _nearest_codes(words, multiplier, dtype):
    packed = None
    for a in reversed(operand.widen_magnitudes(words, dtype)):
        code = ptx.min_unsigned(_curve(ptx.mul(a, multiplier), ptx.fma, _INTEGER), Uint32(0x4B000007))
        packed = code if packed is None else packed * Uint32(16) + code
    # the exponent bits of 2**23 have added 0xFB000000 modulo 2**32
    return packed + Uint32(0x05000000) + operand.sign_nibbles(words, dtype)


def _nudged(a):
    """The magnitude a plus 2**-26, rounded down.

    The contract's 256 * frac + byte is a float32 sum, which reaches 256 from 2**-17 below by rounding. Only
    below 1/2 does float32 hold an `a` that close to a threshold, and the nudge is that distance; above, it is
    lost in the rounding.
    """
    return ptx.add_down(a, Float32(2.0**-26))


def _stochastic_codes(words, multiplier, dtype, random):
    magnitudes = operand.widen_magnitudes(words, dtype)
    pairs = []
    for i in range(4):
        low, high = (
            ptx.min_unsigned(_curve(_nudged(ptx.mul(a, multiplier)), ptx.fma_down, _FIXED), Uint32(0x47000700))
            for a in magnitudes[2 * i : 2 * i + 2]
        )
        # adding a byte to the 8.8 fixed point carries into the code when 256 * frac + byte >= 256
        two_bytes = ptx.permute(random[i // 2], Uint32(0), 0x4342 if i % 2 else 0x4140)
        pairs.append(ptx.permute(low, high, 0x5410) + two_bytes)
    even, odd = operand.split_high_bytes(pairs)
    return even + odd * Uint32(16) + operand.sign_nibbles(words, dtype)


def _hardware_codes(words, multiplier, dtype):
    values = operand.widen(words, dtype)
    products = []
    for i in range(0, 8, 2):
        products += cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (multiplier, multiplier))
    convert = " ".join(
        f"cvt.rn.satfinite.e2m1x2.f32 {byte}, {{$r{2 * i + 1}}}, {{$r{2 * i}}};" for i, byte in enumerate("abcd")
    )
    return cute.arch.inline_ptx(
        f"{{ .reg .b8 a, b, c, d; {convert} mov.b32 {{$w0}}, {{a, b, c, d}}; }}",
        write_only_types=[Uint32],
        read_only_args=products,
    )


def round_values(products: list, hopper: bool) -> list:
    """E2M1 values nearest to an even number of Float32, signs kept; 6 for NaN and anything larger."""
    if not hopper:
        pairs = [_round_pair(a, b) for a, b in zip(products[0::2], products[1::2], strict=True)]
        return [value for pair in pairs for value in pair]
    magnitudes = [ptx.bits(_round_magnitude(ptx.absolute(p))) for p in products]
    signs = [ptx.bits(p) & Uint32(0x80000000) for p in products]
    return [ptx.from_bits(m | s) for m, s in zip(magnitudes, signs, strict=True)]


def _round_magnitude(a):
    """The sm_90 form, for a >= 0 or NaN."""
    a = ptx.min_number(a, Float32(E2M1_MAX))
    # grid spacing is half the power of two at or below a, never under 1/2; 2**22 times that power has that spacing
    binade = ptx.from_bits(ptx.max_unsigned(ptx.bits(a) & Uint32(0x7F800000), Uint32(0x3F800000)))
    return ptx.fma(binade, Float32(-(2.0**22)), ptx.fma(binade, Float32(2.0**22), a))


def _round_pair(low, high) -> tuple:
    """The form of sm_100 and later: there and back through the hardware conversion."""
    return cute.arch.inline_ptx(
        "{ .reg .b8 c; .reg .b16 l, h; .reg .b32 v; cvt.rn.satfinite.e2m1x2.f32 c, {$r1}, {$r0};"
        " cvt.rn.f16x2.e2m1x2 v, c; mov.b32 {l, h}, v; cvt.f32.f16 {$w0}, l; cvt.f32.f16 {$w1}, h; }",
        write_only_types=[Float32, Float32],
        read_only_args=[low, high],
    )
