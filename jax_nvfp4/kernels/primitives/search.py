"""Four-over-six: the errors of two scales of a block (section 5), in registers.

Errors are made of magnitudes: changing the sign of an element and of its code changes that of the difference only.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Uint32

from jax_nvfp4.kernels.primitives import e2m1, ptx
from jax_nvfp4.mode import Search, SearchError

# Amaxes with which no product of a code, a block scale and the amax overflows, and its quotient is never subnormal.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**112


class Scope(NamedTuple):
    """What the errors of blocks depend on that have the same amax.

    Attributes:
        scale: S.
        amax: G.
        range: 6 * Emax.
        inverse_range: fl(1 / range).
    """

    scale: Float32
    amax: Float32
    range: Float32
    inverse_range: Float32


class Candidate(NamedTuple):
    """One of the two scales.

    Attributes:
        unit: its value.
        multiplier: what elements are multiplied by before they are rounded.
        values: the magnitudes that they are rounded to, see `round_values`.
    """

    unit: Float32
    multiplier: Float32
    values: list


def round_values(magnitudes: list, multiplier) -> list:
    """E2M1 values nearest to Float32 magnitudes times `multiplier`."""
    return e2m1.round_magnitudes(ptx.mul_each(magnitudes, multiplier))


def errors(magnitudes: list, candidates: list[Candidate], scope: Scope, search: Search) -> tuple:
    """The errors of both scales over 16 elements, step 4.

    Args:
        magnitudes: of the elements in order, Float32.
        candidates: the scales.
        scope: that of the elements.
        search: how errors are measured.
    """
    if search.fp16:
        scaled = [ptx.mul(x, scope.scale) for x in magnitudes]
        return tuple(_reduce(_scaled_differences(c, scaled), search) for c in candidates)
    return _exact_errors(magnitudes, candidates, scope, search)


def tree_sum(terms: list):
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


def tile_sum(errors, along: list, across: list):
    """The sum of the errors of the 16 rows of a tile, in the order of the tree, of those that `whole_rows` gave."""
    for distance in along:
        errors = [ptx.add(e, cute.arch.shuffle_sync_bfly(e, distance)) for e in errors]
    total = tree_sum(list(errors))
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
        return tree_sum(terms)
    combine = ptx.max_nan if search.error == SearchError.ABS_MAX else ptx.add
    total = terms[0]  # 0 + t0, as no term is -0
    for term in terms[1:]:
        total = combine(total, term)
    return total


def _scaled_differences(candidate: Candidate, scaled: list) -> list:
    """What is lost, in units of the block scale; negated. The product of a code and a scale is exact."""
    unit = ptx.mul(candidate.unit, Float32(-1.0))
    return [ptx.fma(v, unit, x) for v, x in zip(candidate.values, scaled, strict=True)]


@cute.jit
def _exact_errors(magnitudes, candidates, scope, search: cutlass.Constexpr):
    six, four = Float32(0), Float32(0)
    if (scope.amax > Float32(_SMALLEST)) & (scope.amax < Float32(_LARGEST)):
        six, four = (_reduce(_differences(c.unit, c.values, magnitudes, scope, _ordinary), search) for c in candidates)
    else:
        # a loop and rounding again, because divisions are long
        unit, multiplier = candidates[0].unit, candidates[0].multiplier
        for _ in cutlass.range(2, unroll=1):
            values = round_values(magnitudes, multiplier)
            six, four = four, _reduce(_differences(unit, values, magnitudes, scope, _any), search)
            unit, multiplier = candidates[1].unit, candidates[1].multiplier
    return six, four


def _differences(unit, values: list, magnitudes: list, scope: Scope, divide) -> list:
    products = [ptx.mul(ptx.mul(v, unit), scope.amax) for v in values]
    return [ptx.subtract(divide(p, scope), x) for p, x in zip(products, magnitudes, strict=True)]


def _any(a, scope: Scope):
    """fl(a / range)."""
    return ptx.div(a, scope.range)


def _ordinary(a, scope: Scope):
    """The same: the remainder of a first quotient is exact, and with either range corrects every mantissa."""
    quotient = ptx.mul(a, scope.inverse_range)
    remainder = ptx.fma(quotient, ptx.mul(scope.range, Float32(-1.0)), a)
    return ptx.fma(remainder, scope.inverse_range, quotient)
