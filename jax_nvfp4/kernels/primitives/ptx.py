"""Single PTX instructions whose rounding, NaN or subnormal behaviour the contract depends on.

DSL operators are not used for these: `a * b + c` is contracted to one FMA, and its `min` drops NaN.
Nothing here flushes subnormals.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32


def _instruction(result, opcode: str, *operands):
    reads = ", ".join(f"{{$r{i}}}" for i in range(len(operands)))
    return cute.arch.inline_ptx(f"{opcode} {{$w0}}, {reads};", write_only_types=[result], read_only_args=list(operands))


def mul(a, b):
    """fl(a * b)."""
    return _instruction(Float32, "mul.rn.f32", a, b)


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


def select_equal(a, b, if_equal, otherwise, kind=Uint32):
    """if_equal where a == b (as float32 values or as words, by the type of a), else otherwise, in registers of kind."""
    compare = "setp.eq.f32" if a.dtype is Float32 else "setp.eq.u32"
    return cute.arch.inline_ptx(
        f"{{ .reg .pred p; {compare} p, {{$r0}}, {{$r1}}; selp.b32 {{$w0}}, {{$r2}}, {{$r3}}, p; }}",
        write_only_types=[kind],
        read_only_args=[a, b, if_equal, otherwise],
    )


def permute(a, b, selector: int):
    """The four bytes of (a, b) that the nibbles of selector name; bit 3 of a nibble replicates the byte's sign."""
    return cute.arch.inline_ptx(
        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {selector};", write_only_types=[Uint32], read_only_args=[a, b]
    )


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
