"""Four-over-six: of two scales of a block the one with the smaller error (section 5), in registers.

Errors are made of magnitudes: changing the sign of an element and of its code changes that of the difference only.

Nearly all blocks are ordinary: their amax is of a usual size and no element exceeds 7 scales, so that rounding needs no
clamp, and no reciprocal or quotient a range check. The others are computed again, step by step.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.formats import E2M1_MAX
from jax_nvfp4.kernels.primitives import e2m1, e4m3, operand, ptx
from jax_nvfp4.mode import Search, SearchError

# Amaxes with which no product of a code, a block scale and the amax overflows, and no quotient is subnormal.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**112
_LIMIT = 7.0  # from here on a magnitude is rounded to more than 6
FLOAT32_MAX = 3.4028234663852886e38


class Scope(NamedTuple):
    """What the errors of blocks depend on that have the same amax.

    Attributes:
        scale: S.
        inverse: D.
        amax: G.
        range: 6 * Emax.
        inverse_range: fl(1 / range).
        limit: what the largest scaled magnitude of an ordinary block is below; 0 if there are none.
    """

    scale: Float32
    inverse: Float32
    amax: Float32
    range: Float32
    inverse_range: Float32
    limit: Float32


class Choice(NamedTuple):
    """The scale of a block.

    Attributes:
        byte: as it is stored.
        multiplier: what elements are multiplied by.
        values: the magnitudes that they are rounded to, None of a tile.
    """

    byte: Uint32
    multiplier: Float32
    values: list | None


def limit(amax):
    """The limit of a scope."""
    small = ptx.select_less(Float32(_SMALLEST), amax, Float32(_LIMIT), Float32(0.0), Float32)
    return ptx.select_less(amax, Float32(_LARGEST), small, Float32(0.0), Float32)


@cute.jit
def choose(strips, largest, scope, dtype: cutlass.Constexpr, search: cutlass.Constexpr, tile: cutlass.Constexpr):
    """The scale of a block.

    Args:
        strips: the words of 16 elements in order, see `operand`: of the block, or of a tile the rows of this lane.
        largest: the largest magnitude of the block.
        scope: that of the block.
        dtype: name of the float dtype of the elements.
        search: how errors are measured.
        tile: the distances to the lanes that have other rows of the tile, as in `scaling.Strips`; None for a block.
    """
    base = ptx.mul(_quotient(largest, Float32(E2M1_MAX), Float32(1 / E2M1_MAX)), scope.scale)
    encoded = [e4m3.encode(base), e4m3.encode(ptx.mul(base, Float32(1.5)))]
    units = [e4m3.decode(byte) for byte in encoded]
    multipliers = [ptx.reciprocal_ordinary(ptx.mul(unit, scope.inverse)) for unit in units]
    candidates = list(zip(multipliers, units, strict=True))
    six, four = _errors(strips, candidates, dtype, scope, search, tile, e2m1.round_ordinary, _divide_ordinary)
    byte = ptx.select_less(four, six, encoded[1], encoded[0])
    multiplier = ptx.select_less(four, six, multipliers[1], multipliers[0], Float32)
    values = None
    if cutlass.const_expr(tile is None):
        magnitudes = operand.widen_magnitudes(strips[0], dtype)
        rounded = [_round(magnitudes, multiplier, e2m1.round_ordinary) for multiplier in multipliers]
        values = [ptx.select_less(four, six, b, a, Float32) for a, b in zip(*rounded, strict=True)]

    special = Uint32(1)
    if (ptx.mul(largest, multipliers[0]) < scope.limit) & (ptx.mul(largest, multipliers[1]) < scope.limit):
        special = Uint32(0)
    if cutlass.const_expr(tile is not None):
        special = ptx.max_of_warp(special)  # as lanes exchange errors
    if special != Uint32(0):
        base = ptx.mul(ptx.div(largest, Float32(E2M1_MAX)), scope.scale)
        first, second, factor = Uint32(0), Uint32(0), Float32(1.0)
        first_multiplier, second_multiplier = Float32(0), Float32(0)
        six, four = Float32(0), Float32(0)
        for _ in cutlass.range(2, unroll=1):  # a loop, because the steps are long
            first, second = second, e4m3.encode(ptx.mul(base, factor))
            unit = e4m3.decode(second)
            inverse = ptx.reciprocal(ptx.mul(unit, scope.inverse))
            first_multiplier, second_multiplier = second_multiplier, ptx.min_nan(inverse, Float32(FLOAT32_MAX))
            one = [(second_multiplier, unit)]
            (error,) = _errors(strips, one, dtype, scope, search, tile, e2m1.round_magnitudes, _divide)
            six, four = four, error
            factor = Float32(1.5)
        byte = ptx.select_less(four, six, second, first)
        multiplier = ptx.select_less(four, six, second_multiplier, first_multiplier, Float32)
        if cutlass.const_expr(tile is None):
            values = _round(magnitudes, multiplier, e2m1.round_magnitudes)
    return Choice(byte, multiplier, values)


def _round(magnitudes: list, multiplier, nearest) -> list:
    return nearest(ptx.mul_each(magnitudes, multiplier))


def _error(strip: list, multiplier, unit, scope: Scope, search: Search, nearest, divide):
    """The error of a scale, steps 3 and 4."""
    values = _round(strip, multiplier, nearest)
    if search.fp16:
        return _reduce(_scaled_differences(strip, values, unit, scope), search)
    return _reduce(_differences(strip, values, unit, scope, divide), search)


@cute.jit
def _errors(
    strips,
    candidates,
    dtype: cutlass.Constexpr,
    scope,
    search: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    nearest: cutlass.Constexpr,
    divide: cutlass.Constexpr,
):
    """The errors of scales; a candidate is a multiplier and the value of a scale."""
    if cutlass.const_expr(tile is None):
        errors = _strip_errors(strips[0], candidates, dtype, scope, search, nearest, divide)
    else:
        # a loop, because the numbers of several strips at once take too many registers
        by_strip = [[Float32(0) for _ in strips] for _ in candidates]
        for _ in cutlass.range(len(strips), unroll=1):
            by_strip = _append(by_strip, _strip_errors(strips[0], candidates, dtype, scope, search, nearest, divide))
            strips = strips[1:] + strips[:1]
        errors = [_tile_sum(e, *tile) for e in by_strip]
    return errors


def _append(lists: list, items: list) -> list:
    return [[*rest[1:], item] for rest, item in zip(lists, items, strict=True)]


def _strip_errors(words: list, candidates: list, dtype: str, scope: Scope, search: Search, nearest, divide) -> list:
    magnitudes = operand.widen_magnitudes(words, dtype)
    return [_error(magnitudes, *c, scope, search, nearest, divide) for c in candidates]


def _tree_sum(terms: list):
    """The sum of a power of two of them, in the order of a shuffle-down."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [ptx.add(a, b) for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def whole_rows(rows: list, along: list) -> list:
    """Whole rows of a tile, in exchange for parts of rows; see `scaling.Strips`.

    In each step a lane gives its partner one half of the rows for the same part of the other half.
    """
    for distance in along:
        is_first, half = cute.arch.lane_idx() & distance, len(rows) // 2
        exchanged = []
        for low, high in zip(rows[:half], rows[half:], strict=True):
            pairs = list(zip(low, high, strict=True))
            kept = [_if_zero(is_first, a, b) for a, b in pairs]
            got = [cute.arch.shuffle_sync_bfly(_if_zero(is_first, b, a), distance) for a, b in pairs]
            pairs = list(zip(kept, got, strict=True))
            exchanged.append(
                [_if_zero(is_first, k, g) for k, g in pairs] + [_if_zero(is_first, g, k) for k, g in pairs]
            )
        rows = exchanged
    return rows


def _tile_sum(errors, along: list, across: list):
    """The sum of the errors of the 16 rows of a tile, in the order of the tree, of those that `whole_rows` gave."""
    for distance in along:
        errors = [ptx.add(e, cute.arch.shuffle_sync_bfly(e, distance)) for e in errors]
    total = _tree_sum(list(errors))
    for distance in across:
        total = ptx.add(total, cute.arch.shuffle_sync_bfly(total, distance))
    return total


def _if_zero(number, if_zero, otherwise):
    return ptx.select_equal(Uint32(number), Uint32(0), if_zero, otherwise)


def _reduce(differences: list, search: Search):
    if search.error == SearchError.MSE:
        terms = [ptx.mul(d, d) for d in differences]
    else:
        terms = [ptx.absolute(d) for d in differences]
    if search.tree and search.error != SearchError.ABS_MAX:
        return _tree_sum(terms)
    combine = ptx.max_nan if search.error == SearchError.ABS_MAX else ptx.add
    total = terms[0]  # 0 + t0, as no term is -0
    for term in terms[1:]:
        total = combine(total, term)
    return total


def _scaled_differences(magnitudes: list, values: list, unit, scope: Scope) -> list:
    """What is lost, in units of the block scale; negated. The product of a code and a scale is exact."""
    unit = ptx.mul(unit, Float32(-1.0))
    return [ptx.fma(v, unit, ptx.mul(x, scope.scale)) for v, x in zip(values, magnitudes, strict=True)]


def _differences(magnitudes: list, values: list, unit, scope: Scope, divide) -> list:
    products = [ptx.mul(ptx.mul(v, unit), scope.amax) for v in values]
    return [ptx.subtract(divide(p, scope), x) for p, x in zip(products, magnitudes, strict=True)]


def _divide(a, scope: Scope):
    return ptx.div(a, scope.range)


def _divide_ordinary(a, scope: Scope):
    return _quotient(a, scope.range, scope.inverse_range)


def _quotient(a, divisor, inverse):
    """fl(a / divisor) of ordinary numbers: the remainder of a first quotient is exact, and corrects it.

    True of every mantissa where the divisor is 6, 6 * 256 or 6 * 448 and `inverse` its rounded reciprocal.
    """
    quotient = ptx.mul(a, inverse)
    remainder = ptx.fma(quotient, ptx.mul(divisor, Float32(-1.0)), a)
    return ptx.fma(remainder, inverse, quotient)
