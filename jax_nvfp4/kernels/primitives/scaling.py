"""How a block is scaled: one class per way, chosen by `of` while tracing, against which every kernel is written once.

A way of scaling keeps in shared memory what the amaxes of the scopes that a CTA meets fix (`scopes`, `open_scope`),
finds what the elements of a block are scaled with (`scale`), and makes of them its codes (`codes`) or its values
(`round_trip`). Dequantizing multiplies a code by a `factor`. The classes are frozen dataclasses, without
which the DSL takes a method call inside a dynamic branch for an assignment to the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import e2m1, e4m3, operand, ptx

FLOAT32_MAX = 3.4028234663852886e38
NAN_SCALE = 0x7F
_ENCODE_VALUES, _ROUND_TRIP_VALUES = 2, 3  # of a scope


class Scale(NamedTuple):
    """What a block is scaled with.

    Attributes:
        byte: its stored scale, in a Uint32.
        multiplier: what its elements are multiplied by before they are rounded, a Float32.
        factor: what its E2M1 values are multiplied by to dequantize them, None where nobody does.
    """

    byte: Uint32
    multiplier: Float32
    factor: Float32 | None = None


def of(variant):
    """The way of scaling that a variant is compiled for."""
    return Nvfp4(variant.dtype)


@dataclass(frozen=True)
class Nvfp4:
    """An E4M3 scale per block, under an amax (section 2).

    Attributes:
        dtype: name of the float dtype of the high precision operand.
    """

    dtype: str
    block = NVFP4_FORMAT.block
    code_words = NVFP4_FORMAT.block_bytes // 4

    def scopes(self, count: int = 1, round_trip: bool = False):
        """Shared memory for what the amaxes of `count` scopes fix, with `round_trip` for dequantizing too."""
        stride = 4 if round_trip else 2
        return cute.make_tensor(
            cute.arch.alloc_smem(Float32, stride * count, alignment=4 * stride),
            cute.make_layout((count, _ROUND_TRIP_VALUES if round_trip else _ENCODE_VALUES), stride=(stride, 1)),
        )

    def open_scope(self, scopes, index, amax, scope) -> None:
        """Fill entry `index` of `scopes` for amax[scope]; a barrier must follow.

        The values are fl(S * fl(1/6)) and D, then the amax: three divisions, so once per scope and CTA.
        """
        one, value = Float32(1.0), amax[scope]
        scale = ptx.min_nan(ptx.div(Float32(NVFP4_FORMAT.code_max * NVFP4_FORMAT.scale_max), value), _float32_max())
        scale = ptx.select_equal(value, Float32(0.0), one, scale, Float32)
        scale = ptx.select_equal(scale, Float32(0.0), one, scale, Float32)
        values = ptx.mul(scale, Float32(1 / NVFP4_FORMAT.code_max)), ptx.reciprocal(scale), value
        for i in range(scopes.shape[1]):
            scopes[index, i] = values[i]

    def scale(self, blocks, lanes, scopes, index=0) -> Scale:
        """What elements are scaled with that share a scale.

        Args:
            blocks: those of this thread, see `operand`.
            lanes: the distances to the lanes that hold others, all of which must get here.
            scopes: what the amaxes fix.
            index: the entry of `scopes` of these elements.
        """
        scale_sixth, inverse, *amax = (scopes[index, i] for i in range(scopes.shape[1]))
        byte = e4m3.encode(ptx.mul(operand.shared_max(blocks, lanes, self.dtype), scale_sixth))
        multiplier = ptx.min_nan(ptx.reciprocal(ptx.mul(e4m3.decode(byte), inverse)), _float32_max())
        return Scale(byte, multiplier, self.factor(byte, *amax) if amax else None)

    def codes(self, words, scale: Scale, random=None) -> list:
        """The codes of a block, 8 in a word.

        All are 7 where the scale is NaN. An element times the multiplier is NaN only in such a block: the multiplier is
        never 0, so Inf does not make one.

        Args:
            words: the block, see `operand`.
            scale: its scale.
            random: the four words of the block's draw for stochastic rounding, None for nearest.
        """
        half = len(words) // 2
        codes = []
        for i, eight in enumerate((words[:half], words[half:])):
            draw = None if random is None else random[2 * i : 2 * i + 2]
            eight_codes = e2m1.encode(eight, scale.multiplier, self.dtype, draw)
            codes.append(ptx.select_equal(scale.byte, Uint32(NAN_SCALE), Uint32(0x77777777), eight_codes))
        return codes

    def round_trip(self, words, scale: Scale) -> list:
        """Words of elements that are quantized and dequantized again."""
        products = [ptx.mul(x, scale.multiplier) for x in operand.widen(words, self.dtype)]
        return operand.narrow([ptx.mul(v, scale.factor) for v in e2m1.round_values(products)], self.dtype)

    def factor(self, byte, amax):
        """What a code is multiplied by to dequantize it (step 7); without an amax the block scale alone."""
        if amax is None:
            return e4m3.decode(byte)
        largest = NVFP4_FORMAT.code_max * NVFP4_FORMAT.scale_max
        return ptx.mul(ptx.mul(e4m3.decode(byte), amax), Float32(1 / largest))


def _float32_max():
    return Float32(FLOAT32_MAX)
