"""Single PTX instructions whose rounding, NaN or subnormal behaviour the contract depends on.

DSL operators are not used for these: `a * b + c` is contracted to one FMA, and its `min` drops NaN.
Nothing here flushes subnormals.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.kernels.primitives import family


def _instruction(result, opcode: str, *operands):
    reads = ", ".join(f"{{$r{i}}}" for i in range(len(operands)))
    return cute.arch.inline_ptx(f"{opcode} {{$w0}}, {reads};", write_only_types=[result], read_only_args=list(operands))


def mul(a, b):
    """fl(a * b)."""
    return _instruction(Float32, "mul.rn.f32", a, b)


def mul_each(values: list, factor) -> list:
    """fl(v * factor) of an even number of values, two in one instruction where the family can."""
    if not family.has_packed_f32():
        return [mul(v, factor) for v in values]
    products = []
    for pair in zip(values[0::2], values[1::2], strict=True):
        products += cute.arch.mul_packed_f32x2(pair, (factor, factor))
    return products


def add(a, b):
    """fl(a + b)."""
    return _instruction(Float32, "add.rn.f32", a, b)


def subtract(a, b):
    """fl(a - b)."""
    return _instruction(Float32, "sub.rn.f32", a, b)


def add_down(a, b):
    """a + b, rounded toward minus infinity."""
    return _instruction(Float32, "add.rm.f32", a, b)


def fma(a, b, c):
    """a * b + c, rounded once to nearest."""
    return _instruction(Float32, "fma.rn.f32", a, b, c)


def fma_down(a, b, c):
    """a * b + c, rounded once toward minus infinity."""
    return _instruction(Float32, "fma.rm.f32", a, b, c)


def div(a, b):
    """fl(a / b)."""
    return _instruction(Float32, "div.rn.f32", a, b)


def reciprocal(a):
    """fl(1 / a)."""
    return _instruction(Float32, "rcp.rn.f32", a)


def reciprocal_ordinary(a):
    """fl(1 / a) where a and the result are normal and neither near the ends of the range; NaN of 0."""
    return cute.arch.inline_ptx(
        # the same without the range check: one Newton step
        "{ .reg .f32 y, e; rcp.approx.ftz.f32 y, {$r0}; fma.rn.f32 e, {$r0}, y, 0fBF800000; neg.f32 e, e;"
        " fma.rn.f32 {$w0}, y, e, y; }",
        write_only_types=[Float32],
        read_only_args=[a],
    )


def absolute(a):
    """|a|; an operand modifier of the instruction that uses it, so usually free."""
    return _instruction(Float32, "abs.f32", a)


def min_number(a, b):
    """The smaller one, or the other one where one is NaN."""
    return _instruction(Float32, "min.f32", a, b)


def min_nan(a, b):
    """The smaller one, or NaN where either is NaN."""
    return _instruction(Float32, "min.NaN.f32", a, b)


def max_nan(a, b):
    """The larger one, or NaN where either is NaN."""
    return _instruction(Float32, "max.NaN.f32", a, b)


def max_magnitude(a, b):
    """The larger of |a| and |b| with an arbitrary sign, or NaN where either is NaN."""
    return _instruction(Float32, "max.NaN.xorsign.abs.f32", a, b)


def max_magnitude_halves(a, b, kind: str):
    """`max_magnitude` of both halves of two words; kind is "bf16x2" or "f16x2"."""
    return _instruction(Uint32, f"max.NaN.xorsign.abs.{kind}", a, b)


def min_unsigned(a, b):
    """The smaller one of two Uint32."""
    return _instruction(Uint32, "min.u32", a, b)


def max_unsigned(a, b):
    """The larger one of two Uint32."""
    return _instruction(Uint32, "max.u32", a, b)


def max_unsigned_halves(a, b):
    """The larger ones of both 16-bit halves of two words."""
    return cute.arch.inline_ptx(
        # packed operations take no immediate, so a constant operand needs the register
        "{ .reg .b32 a; mov.b32 a, {$r0}; max.u16x2 {$w0}, a, {$r1}; }",
        write_only_types=[Uint32],
        read_only_args=[a, b],
    )


def max_of_warp(a):
    """The largest Uint32 of a warp, all of whose lanes must get here."""
    return cute.arch.inline_ptx(
        "redux.sync.max.u32 {$w0}, {$r0}, 0xffffffff;", write_only_types=[Uint32], read_only_args=[a]
    )


def raise_to(address, a) -> None:
    """Raise the Uint32 at an address of global memory to `a` if it is smaller, atomically."""
    cute.arch.inline_ptx("red.global.max.u32 [{$r0}], {$r1};", read_only_args=[address, a])


def select_equal(a, b, if_equal, otherwise, kind=Uint32):
    """if_equal where a == b (as float32 values or as words, by the type of a), else otherwise, in registers of kind."""
    compare = "setp.eq.f32" if a.dtype is Float32 else "setp.eq.u32"
    return cute.arch.inline_ptx(
        f"{{ .reg .pred p; {compare} p, {{$r0}}, {{$r1}}; selp.b32 {{$w0}}, {{$r2}}, {{$r3}}, p; }}",
        write_only_types=[kind],
        read_only_args=[a, b, if_equal, otherwise],
    )


def select_less(a, b, if_less, otherwise, kind=Uint32):
    """if_less where the Float32 a < b, else, and where either is NaN, otherwise, in registers of kind."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.lt.f32 p, {$r0}, {$r1}; selp.b32 {$w0}, {$r2}, {$r3}, p; }",
        write_only_types=[kind],
        read_only_args=[a, b, if_less, otherwise],
    )


def permute(a, b, selector):
    """The four bytes of (a, b) that the low nibbles of selector name: an int or a Uint32.

    Bit 3 of a nibble replicates the byte's sign.
    """
    if isinstance(selector, int):
        return cute.arch.inline_ptx(
            f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {selector};", write_only_types=[Uint32], read_only_args=[a, b]
        )
    return _instruction(Uint32, "prmt.b32", a, b, selector)


def multiply_wide(a, b):
    """(low, high) words of the 64-bit product of two Uint32."""
    return cute.arch.inline_ptx(
        "{ .reg .b64 p; mul.wide.u32 p, {$r0}, {$r1}; mov.b64 {{$w0}, {$w1}}, p; }",
        write_only_types=[Uint32, Uint32],
        read_only_args=[a, b],
    )


def bits(a):
    """The word that holds a Float32."""
    return a.bitcast(Uint32)


def from_bits(a):
    """The Float32 that a word holds."""
    return a.bitcast(Float32)
