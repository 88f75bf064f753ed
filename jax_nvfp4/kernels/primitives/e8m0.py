"""E8M0 block scales (section 1): byte b is 2^(b - 127), 255 is NaN. Nothing is flushed: 2^-127 is subnormal."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32


def _assembly(body: str, result, operand):
    return cute.arch.inline_ptx(
        f"{{ .reg .pred p, q; .reg .b32 t; {body} }}", write_only_types=[result], read_only_args=[operand]
    )


def encode_up(value):
    """RCEIL: the byte of the smallest power that is at least a Float32 >= 0, in a Uint32; 255 for Inf and NaN.

    Adding all ones below the exponent carries into it unless the mantissa is 0; in a subnormal, unless the value is at
    most 2^-127.
    """
    return _assembly(
        "mov.b32 t, {$r0}; setp.lt.u32 p, t, 0x800000; selp.b32 {$w0}, 0x3FFFFF, 0x7FFFFF, p; add.u32 t, t, {$w0};"
        " shr.u32 t, t, 23; min.u32 {$w0}, t, 255;",
        Uint32,
        value,
    )


def encode_down(value, largest_exponent: int):
    """FLOOR: that of the power below it, divided by 2^largest_exponent."""
    return _assembly(
        f"mov.b32 t, {{$r0}}; shr.u32 t, t, 23; setp.eq.u32 p, t, 255; max.u32 t, t, {largest_exponent};"
        f" sub.u32 t, t, {largest_exponent}; selp.b32 {{$w0}}, 255, t, p;",
        Uint32,
        value,
    )


def decode(byte):
    """The Float32 value of a byte given in a Uint32."""
    return _assembly(
        "shl.b32 t, {$r0}, 23; setp.eq.u32 p, {$r0}, 0; selp.b32 t, 0x400000, t, p; setp.eq.u32 q, {$r0}, 255;"
        " selp.b32 {$w0}, 0x7FC00000, t, q;",
        Float32,
        byte,
    )


def inverse(byte):
    """What elements are multiplied by: the value of byte 254 - b, or NaN."""
    return _assembly(
        "sub.u32 t, 254, {$r0}; shl.b32 t, t, 23; setp.eq.u32 p, {$r0}, 254; selp.b32 t, 0x400000, t, p;"
        " setp.eq.u32 q, {$r0}, 255; selp.b32 {$w0}, 0x7FC00000, t, q;",
        Float32,
        byte,
    )
