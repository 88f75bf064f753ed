"""Blocks of the high precision operand: 32-bit words of bf16, fp16 or float32 to float32 registers and back.

A block is a list of words in element order: two 16-bit elements (the first in the low half) or one
float32 element per word. dtype is a name of `formats.FLOAT_DTYPES`.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint16, Uint32

from jax_nvfp4.kernels.primitives import ptx


def word_type(dtype: str):
    """The storage word of one element."""
    return Uint32 if dtype == "float32" else Uint16


def per_word(dtype: str) -> int:
    """Elements in a word."""
    return 1 if dtype == "float32" else 2


def _halves_f16(word):
    return cute.arch.inline_ptx(
        "{ .reg .b16 l, h; mov.b32 {l, h}, {$r0}; cvt.f32.f16 {$w0}, l; cvt.f32.f16 {$w1}, h; }",
        write_only_types=[Float32, Float32],
        read_only_args=[word],
    )


def widen(words, dtype: str) -> list:
    """The elements of words as Float32, exact."""
    values = []
    for word in words:
        if dtype == "float32":
            values.append(ptx.from_bits(word))
        elif dtype == "bfloat16":
            values += [ptx.from_bits(word << Uint32(16)), ptx.from_bits(word & Uint32(0xFFFF0000))]
        else:
            values += _halves_f16(word)
    return values


def widen_magnitudes(words, dtype: str) -> list:
    """The magnitudes of the elements of words as Float32, exact; cheaper than `widen` and `abs`."""
    values = []
    for word in words:
        if dtype == "float32":
            values.append(ptx.absolute(ptx.from_bits(word)))
        elif dtype == "bfloat16":
            low = ptx.absolute(ptx.from_bits(word << Uint32(16)))
            values += [low, ptx.from_bits(word & Uint32(0x7FFF0000))]
        else:
            values += _halves_f16(word & Uint32(0x7FFF7FFF))
    return values


def narrow(values, dtype: str) -> list:
    """Words of Float32 values rounded to nearest even; every NaN is the contract's canonical one.

    The values are results of arithmetic, so a NaN among them is the positive one the GPU makes, which the
    conversions turn into 0x7FFF. As signed integers only that exceeds the canonical pattern, hence `min`.
    """
    if dtype == "float32":
        return [_min_signed("s32", ptx.bits(value), 0x7FC00000) for value in values]
    kind, canonical = ("bf16x2", 0x7FC07FC0) if dtype == "bfloat16" else ("f16x2", 0x7E007E00)
    words = []
    for low, high in zip(values[0::2], values[1::2], strict=True):
        word = cute.arch.inline_ptx(
            f"cvt.rn.{kind}.f32 {{$w0}}, {{$r0}}, {{$r1}};", write_only_types=[Uint32], read_only_args=[high, low]
        )
        words.append(_min_signed("s16x2", word, canonical))
    return words


def _min_signed(kind: str, word, constant: int):
    return cute.arch.inline_ptx(
        f"{{ .reg .b32 c; mov.b32 c, {constant}; min.{kind} {{$w0}}, {{$r0}}, c; }}",
        write_only_types=[Uint32],
        read_only_args=[word],
    )


def magnitude_bits(word, dtype: str):
    """The magnitudes of the elements of a word in its own bits, whose order as integers is theirs, NaN above Inf."""
    return word & Uint32(0x7FFFFFFF if dtype == "float32" else 0x7FFF7FFF)


def max_bits(a, b, dtype: str):
    """The larger `magnitude_bits` of two words, element by element."""
    return ptx.max_unsigned(a, b) if dtype == "float32" else ptx.max_unsigned_halves(a, b)


def shared_max(blocks, lanes, dtype: str):
    """max |x| over blocks as Float32, NaN where any element is NaN (section 2, step 3).

    Args:
        blocks: blocks of this thread, a power of two.
        lanes: the distances, powers of two, to the lanes whose blocks count too. All of them must get here.
        dtype: name of the float dtype of the elements.
    """
    largest = _tree(ptx.max_nan, [_block_max(block, dtype) for block in blocks])
    for distance in lanes:
        largest = ptx.max_nan(largest, cute.arch.shuffle_sync_bfly(largest, distance))
    return largest


def _block_max(words, dtype: str):
    if dtype == "float32":
        return ptx.absolute(_tree(ptx.max_magnitude, [ptx.from_bits(word) for word in words]))
    kind = "bf16x2" if dtype == "bfloat16" else "f16x2"
    largest = _tree(lambda a, b: ptx.max_magnitude_halves(a, b, kind), list(words))
    low, high = widen_magnitudes([largest], dtype)
    return ptx.max_nan(low, high)


def _tree(combine, items: list):
    while len(items) > 1:
        items = [combine(a, b) for a, b in zip(items[0::2], items[1::2], strict=True)]
    return items[0]


def sign_nibbles(words, dtype: str):
    """The signs of 8 elements in one word: bit 3 of nibble i is the sign of element i."""
    if dtype == "float32":
        words = [ptx.permute(a, b, 0x7632) for a, b in zip(words[0::2], words[1::2], strict=True)]
    even, odd = split_high_bytes(words, replicate_sign=True)
    return (even & Uint32(0x08080808)) + (odd & Uint32(0x80808080))


def split_high_bytes(words, replicate_sign: bool = False) -> tuple:
    """High bytes of the 8 halves of 4 words: those of the even elements in one word, of the odd ones in another.

    With replicate_sign each byte is 0xFF where the half's top bit is set, else 0.
    """
    selector = 0xFBD9 if replicate_sign else 0x7351
    first, second = ptx.permute(words[0], words[1], selector), ptx.permute(words[2], words[3], selector)
    return ptx.permute(first, second, 0x5410), ptx.permute(first, second, 0x7632)
