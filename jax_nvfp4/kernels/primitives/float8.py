"""E4M3 and E5M2 elements (section 1), four in a word. Every supported GPU family converts them in hardware.

`kind` is "e4m3" or "e5m2".
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Uint32


def encode(values: list, kind: str):
    """The codes of four Float32: nearest even, saturating, NaN to 0x7F."""
    return cute.arch.inline_ptx(
        f"{{ .reg .b16 l, h; cvt.rn.satfinite.{kind}x2.f32 l, {{$r1}}, {{$r0}};"
        f" cvt.rn.satfinite.{kind}x2.f32 h, {{$r3}}, {{$r2}}; mov.b32 {{$w0}}, {{l, h}}; }}",
        write_only_types=[Uint32],
        read_only_args=values,
    )


def decode(word, kind: str) -> tuple:
    """The four values of a word as Float32."""
    halves = " ".join(
        f"cvt.rn.f16x2.{kind}x2 v, {half}; mov.b32 {{a, b}}, v; cvt.f32.f16 {{$w{i}}}, a; cvt.f32.f16 {{$w{i + 1}}}, b;"
        for i, half in ((0, "l"), (2, "h"))
    )
    return cute.arch.inline_ptx(
        f"{{ .reg .b16 l, h, a, b; .reg .b32 v; mov.b32 {{l, h}}, {{$r0}}; {halves} }}",
        write_only_types=[Float32] * 4,
        read_only_args=[word],
    )
