"""E2M1 codes and values (section 1), nearest and stochastic (section 6).

Where no instruction converts, and in stochastic rounding, both come from one fact: over [0, 6] the code of a magnitude
a is the rounding of the concave piecewise linear curve min(2a, a + 2, a/2 + 4), clamped to 7. Each line is one FMA
onto a constant so large that the integer (or fixed point) result appears in the low mantissa bits, rounded exactly
once.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.formats import E2M1_MAX
from jax_nvfp4.kernels.primitives import family, operand, ptx

_INTEGER = 2.0**23  # float32 spacing 1: nearest rounding leaves RNE(curve) in the mantissa, ties to even
_FIXED = 2.0**15  # float32 spacing 1/256: rounding down leaves floor(256 * curve)


def encode(words, multiplier, dtype: str, random=None):
    """The codes of 8 elements, each times `multiplier`, in a word; anything goes where a product is NaN.

    Args:
        words: the elements, see `operand`.
        multiplier: a Float32.
        dtype: name of the float dtype of the elements.
        random: two words, a byte per element, for stochastic rounding; None for nearest.
    """
    if random is not None:
        return _stochastic_codes(words, multiplier, dtype, random)
    if family.has_fp4_conversion():
        return _hardware_codes(words, multiplier, dtype)
    return _nearest_codes(words, multiplier, dtype)


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
    products = ptx.mul_each(operand.widen(words, dtype), multiplier)
    convert = " ".join(
        f"cvt.rn.satfinite.e2m1x2.f32 {byte}, {{$r{2 * i + 1}}}, {{$r{2 * i}}};" for i, byte in enumerate("abcd")
    )
    return cute.arch.inline_ptx(
        f"{{ .reg .b8 a, b, c, d; {convert} mov.b32 {{$w0}}, {{a, b, c, d}}; }}",
        write_only_types=[Uint32],
        read_only_args=products,
    )


def round_values(products: list) -> list:
    """E2M1 values nearest to an even number of Float32, signs kept; 6 for NaN and anything larger."""
    if family.has_fp4_conversion():
        return _round_pairs(products)
    magnitudes = [ptx.bits(_round_magnitude(ptx.absolute(p))) for p in products]
    signs = [ptx.bits(p) & Uint32(0x80000000) for p in products]
    return [ptx.from_bits(m | s) for m, s in zip(magnitudes, signs, strict=True)]


def round_magnitudes(products: list) -> list:
    """`round_values` where no product is negative."""
    return _round_pairs(products) if family.has_fp4_conversion() else [_round_magnitude(p) for p in products]


def round_ordinary(products: list) -> list:
    """`round_magnitudes` where no product reaches 7; anything where one does, or is NaN."""
    return _round_pairs(products) if family.has_fp4_conversion() else [_round_to_grid(p) for p in products]


def _round_pairs(products: list) -> list:
    pairs = [_round_pair(a, b) for a, b in zip(products[0::2], products[1::2], strict=True)]
    return [value for pair in pairs for value in pair]


def _round_magnitude(a):
    """The arithmetic form, for a >= 0 or NaN."""
    return _round_to_grid(ptx.min_number(a, Float32(E2M1_MAX)))


def _round_to_grid(a):
    # grid spacing is half the power of two at or below a, never under 1/2; 2**22 times that power has that spacing
    binade = ptx.from_bits(ptx.max_unsigned(ptx.bits(a) & Uint32(0x7F800000), Uint32(0x3F800000)))
    return ptx.fma(binade, Float32(-(2.0**22)), ptx.fma(binade, Float32(2.0**22), a))


def _round_pair(low, high) -> tuple:
    """There and back through the hardware conversion."""
    return cute.arch.inline_ptx(
        "{ .reg .b8 c; .reg .b16 l, h; .reg .b32 v; cvt.rn.satfinite.e2m1x2.f32 c, {$r1}, {$r0};"
        " cvt.rn.f16x2.e2m1x2 v, c; mov.b32 {l, h}, v; cvt.f32.f16 {$w0}, l; cvt.f32.f16 {$w1}, h; }",
        write_only_types=[Float32, Float32],
        read_only_args=[low, high],
    )


def values(codes, count: int) -> list:
    """The values of the low `count` codes (4 or 8) of a word as Float32.

    Three bits of a code look up the high byte of its float16 magnitude; the low byte is always zero.
    """
    magnitudes = codes & Uint32(0x77777777)
    raised = codes << Uint32(4)  # signs of the even codes to the top of their bytes, where those of the odd ones are
    halves = []
    for pair in range(count // 2):
        if pair % 2 == 0:
            # high bytes of the float16 values of 0, 0.5, 1, 1.5 and of 2, 3, 4, 6
            four = ptx.permute(Uint32(0x3E3C3800), Uint32(0x46444240), magnitudes >> Uint32(8 * pair))
        word = ptx.permute(four, Uint32(0), 0x3424 if pair % 2 else 0x1404)
        signs = ptx.permute(raised, codes, (4 + pair) << 12 | pair << 4)
        halves.append(word | (signs & Uint32(0x80008000)))
    return operand.widen(halves, "float16")
