"""How a block is scaled: one class per way, chosen by `of` while tracing, against which every kernel is written once.

A way of scaling keeps in shared memory what the amaxes of the scopes that a CTA meets fix (`scopes`, `open_scope`),
finds what the elements of a block are scaled with (`scale`), and makes of them its codes (`codes`) or its values
(`round_trip`). Dequantizing multiplies a code by a `factor`. The classes are frozen dataclasses, without
which the DSL takes a method call inside a dynamic branch for an assignment to the object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.formats import MXFP8_FORMAT, NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import e2m1, e4m3, e8m0, float8, operand, ptx, search
from jax_nvfp4.mode import Search, SearchError

FLOAT32_MAX = 3.4028234663852886e38
NAN_SCALE = 0x7F


class Scale(NamedTuple):
    """What a block is scaled with.

    Attributes:
        byte: its stored scale, in a Uint32.
        multiplier: what its elements are multiplied by before they are rounded, a Float32.
        factor: what the values of its codes are multiplied by to dequantize them, None where nobody does.
        values: the magnitudes of these values, where they are known.
    """

    byte: Uint32
    multiplier: Float32
    factor: Float32 | None = None
    values: list | None = None


def of(variant):
    """The way of scaling that a variant is compiled for."""
    mode = variant.mode
    if not mode.format.has_amax:
        kind = mode.format.code_dtype.removeprefix("float8_")[:4]
        return Mxfp8(variant.dtype, kind, mode.format.code_max, mode.scale_floor)
    if mode.search.error != SearchError.NONE:
        return FourOverSix(variant.dtype, mode.search)
    return Nvfp4(variant.dtype)


class Strips(NamedTuple):
    """The rows of a 16x16 tile, parts of which lie in several lanes.

    Attributes:
        rows: what this thread has of each of its rows in order, as many neighbouring elements of each, see `operand`.
        along: the distances, from 1 on, to the lanes that have the rest of the same rows, in order.
        across: the distances to those that have the rows between, whose numbers differ in the lowest bits.
    """

    rows: list
    along: list
    across: list


@dataclass(frozen=True)
class Nvfp4:
    """An E4M3 scale per block, under an amax (section 2).

    Attributes:
        dtype: name of the float dtype of the high precision operand.
    """

    dtype: str
    block = NVFP4_FORMAT.block
    code_words = NVFP4_FORMAT.block_bytes // 4
    whole_blocks = False  # whether `scale` needs all elements of a 1x16 block in one lane

    def scopes(self, count: int = 1, round_trip: bool = False):
        """Shared memory for what the amaxes of `count` scopes fix, with `round_trip` for dequantizing too."""
        return _shared_values(count, 4 if round_trip else 2)

    def open_scope(self, scopes, index, amax, scope, emax) -> None:
        """Fill entry `index` of `scopes` for amax[scope], `emax` being the largest block scale; a barrier must follow.

        The values are fl(S * fl(1/6)) and D, then the amax and fl(1 / (6 * emax)): divisions, so once per scope and
        CTA.
        """
        scale, value, largest = _global_scale(amax[scope], emax)
        sixth, inverse = ptx.mul(scale, Float32(1 / NVFP4_FORMAT.code_max)), ptx.reciprocal(scale)
        _fill(scopes, index, (sixth, inverse, value, ptx.reciprocal(largest)))

    def scale(self, blocks, lanes, scopes, index=0, tile: Strips | None = None) -> Scale:
        """What elements are scaled with that share a scale.

        Args:
            blocks: those of this thread, see `operand`.
            lanes: the distances to the lanes that hold others, all of which must get here.
            scopes: what the amaxes fix.
            index: the entry of `scopes` of these elements.
            tile: the same elements, where they are a tile.
        """
        scale_sixth, inverse, *round_trip = _values(scopes, index)
        byte = e4m3.encode(ptx.mul(operand.shared_max(blocks, lanes, self.dtype), scale_sixth))
        return Scale(byte, self._multiplier(byte, inverse), self.factor(byte, *round_trip) if round_trip else None)

    def _multiplier(self, byte, inverse):
        """What elements are multiplied by that have the scale `byte` (step 5)."""
        return ptx.min_nan(ptx.reciprocal(ptx.mul(e4m3.decode(byte), inverse)), _float32_max())

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

    def values(self, codes, count: int) -> list:
        """The values of the low `count` codes of a word."""
        return e2m1.values(codes, count)

    def inverse_range(self, emax):
        """fl(1 / (6 * emax)), what `factor` takes."""
        return ptx.reciprocal(_range(emax))

    def factor(self, byte, amax, inverse_range):
        """What a code is multiplied by to dequantize it (step 7); without an amax the block scale alone."""
        if amax is None:
            return e4m3.decode(byte)
        return ptx.mul(ptx.mul(e4m3.decode(byte), amax), inverse_range)


@dataclass(frozen=True)
class FourOverSix(Nvfp4):
    """Of two block scales the one with the smaller error (section 5).

    Attributes:
        search: how errors are measured.
    """

    search: Search
    whole_blocks = True

    def scopes(self, count: int = 1, round_trip: bool = False):
        """Shared memory for what the amaxes of `count` scopes fix."""
        return _shared_values(count, len(search.Scope._fields))

    def open_scope(self, scopes, index, amax, scope, emax) -> None:
        """Fill entry `index` of `scopes` with a `search.Scope`; see `Nvfp4`."""
        scale, value, largest = _global_scale(amax[scope], emax)
        inverse, inverse_range = ptx.reciprocal(scale), ptx.reciprocal(largest)
        _fill(scopes, index, search.Scope(scale, inverse, value, largest, inverse_range, search.limit(value)))

    def scale(self, blocks, lanes, scopes, index=0, tile: Strips | None = None) -> Scale:
        """See `Nvfp4`."""
        of_scope = search.Scope(*_values(scopes, index))
        largest = operand.shared_max(blocks, lanes, self.dtype)
        strips = blocks if tile is None else search.whole_rows(tile.rows, tile.along)
        others = None if tile is None else (tile.along, tile.across)
        choice = search.choose(strips, largest, of_scope, self.dtype, self.search, others)
        factor = self.factor(choice.byte, of_scope.amax, of_scope.inverse_range)
        return Scale(choice.byte, choice.multiplier, factor, choice.values)

    def round_trip(self, words, scale: Scale) -> list:
        """See `Nvfp4`; the values are those of `words`."""
        if scale.values is None:
            return Nvfp4.round_trip(self, words, scale)
        signed = [
            ptx.from_bits(ptx.bits(v) | (ptx.bits(x) & Uint32(0x80000000)))
            for v, x in zip(scale.values, operand.widen(words, self.dtype), strict=True)
        ]
        return operand.narrow([ptx.mul(v, scale.factor) for v in signed], self.dtype)


@dataclass(frozen=True)
class Mxfp8:
    """An E8M0 scale per block of 8-bit elements, and no amax (section 8).

    Attributes:
        dtype: name of the float dtype of the high precision operand.
        kind: of the elements, see `float8`.
        largest: their largest value.
        floor: whether scales are those of the largest binade, instead of the next power above.
    """

    dtype: str
    kind: str
    largest: float
    floor: bool
    block = MXFP8_FORMAT.block
    code_words = MXFP8_FORMAT.block_bytes // 4
    whole_blocks = False

    def scopes(self, count: int = 1, round_trip: bool = False) -> None:
        """Nothing: there is no amax."""

    def open_scope(self, scopes, index, amax, scope, emax) -> None:
        """Nothing."""

    def scale(self, blocks, lanes, scopes, index=0, tile: Strips | None = None) -> Scale:
        """See `Nvfp4`."""
        largest = operand.shared_max(blocks, lanes, self.dtype)
        if self.floor:
            byte = e8m0.encode_down(largest, int(math.log2(self.largest)))
        else:
            byte = e8m0.encode_up(ptx.mul(largest, Float32(1 / self.largest)))
        return Scale(byte, e8m0.inverse(byte), e8m0.decode(byte))

    def codes(self, words, scale: Scale, random=None) -> list:
        """The codes of elements, 4 in a word; those of a NaN scale are 0x7F, as NaN is their multiplier."""
        products = ptx.mul_each(operand.widen(words, self.dtype), scale.multiplier)
        return [float8.encode(products[i : i + 4], self.kind) for i in range(0, len(products), 4)]

    def round_trip(self, words, scale: Scale) -> list:
        """See `Nvfp4`."""
        values = [v for four in self.codes(words, scale) for v in float8.decode(four, self.kind)]
        return operand.narrow(ptx.mul_each(values, scale.factor), self.dtype)

    def values(self, codes, count: int) -> list:
        """The values of the `count` codes of a word, or of a Uint64."""
        words = [Uint32(codes)] if count == 4 else [Uint32(codes), Uint32(codes >> 32)]
        return [v for word in words for v in float8.decode(word, self.kind)]

    def factor(self, byte, amax=None, inverse_range=None):
        """What a code is multiplied by to dequantize it."""
        return e8m0.decode(byte)


def _float32_max():
    return Float32(FLOAT32_MAX)


def _range(emax):
    """6 * emax, exact."""
    return ptx.mul(emax, Float32(NVFP4_FORMAT.code_max))


def _global_scale(value, emax) -> tuple:
    """S of the amax `value` (step 1), the amax itself and 6 * emax."""
    one, largest = Float32(1.0), _range(emax)
    scale = ptx.min_nan(ptx.div(largest, value), _float32_max())
    scale = ptx.select_equal(value, Float32(0.0), one, scale, Float32)
    return ptx.select_equal(scale, Float32(0.0), one, scale, Float32), value, largest


def _shared_values(count: int, values: int):
    """Shared memory for so many values of each of `count` scopes."""
    stride = 1 << (values - 1).bit_length()
    return cute.make_tensor(
        cute.arch.alloc_smem(Float32, stride * count, alignment=4 * stride),
        cute.make_layout((count, values), stride=(stride, 1)),
    )


def _fill(scopes, index, values) -> None:
    """Write the values of a scope, as many as it has."""
    for i in range(scopes.shape[1]):
        scopes[index, i] = values[i]


def _values(scopes, index) -> list:
    return [scopes[index, i] for i in range(scopes.shape[1])]
