"""E4M3 block scales (section 1). Every supported GPU family converts them in hardware."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32


def encode(value):
    """The E4M3 byte of a Float32, in a Uint32: nearest even, saturating at 448, NaN to 0x7F."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, 0f00000000, {$r0}; cvt.u32.u16 {$w0}, t; }",
        write_only_types=[Uint32],
        read_only_args=[value],
    )


def decode(byte):
    """The Float32 value of an E4M3 byte given in a Uint32 below 256."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 t, l, h; .reg .b32 v; cvt.u16.u32 t, {$r0}; cvt.rn.f16x2.e4m3x2 v, t;"
        " mov.b32 {l, h}, v; cvt.f32.f16 {$w0}, l; }",
        write_only_types=[Float32],
        read_only_args=[byte],
    )
