"""NVFP4 with two-level scaling: one function per step of docs/numerics.md sections 2, 4 and 5.

Every arithmetic operation is one float32 NumPy operation, so the order of the operations below is the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX, NVFP4_FORMAT
from jax_nvfp4.oracle import e2m1, e4m3, four_over_six, stochastic
from jax_nvfp4.spec import QuantSpec

BLOCK = NVFP4_FORMAT.block
ONE = np.float32(1)
FLT_MAX = np.finfo(np.float32).max
ONE_SIXTH = ONE / np.float32(E2M1_MAX)

Reciprocal = Callable[[np.ndarray], np.ndarray]


class Steps(NamedTuple):
    """The named intermediates of sections 2 and 5, for an operand (..., R, C) laid out along its blocks.

    Attributes:
        v: float32 (..., R, C), the operand, after the Hadamard transform if there is one.
        G, S, D: float32, broadcast against the blocks (..., R, C/16).
        B: float32 (..., R, C/16), the block amax; that of a tile stands in all of its rows.
        p: float32 (..., R, C/16), the block scale before it is rounded.
        s: float8_e4m3fn (..., R, C/16), the block scale.
        e: float32 (..., R, C/16), what elements are multiplied by.
        codes: uint8 (..., R, C), one a byte.
        errors: float32 (..., R, C/16) twice, of the scale that maps to 6 and of the one that maps to 4; None without
            four-over-six.
    """

    v: np.ndarray
    G: np.ndarray
    S: np.ndarray
    D: np.ndarray
    B: np.ndarray
    p: np.ndarray
    s: np.ndarray
    e: np.ndarray
    codes: np.ndarray
    errors: tuple[np.ndarray, np.ndarray] | None = None


# The steps of section 2. np.minimum, np.maximum and max() propagate NaN from either operand, as the contract asks.


def reduce_amax(x: np.ndarray, per_row: bool = False) -> np.ndarray:
    """G, the largest magnitude of each matrix or of each row of float32 x; 0 for an empty one."""
    axes = -1 if per_row else (-2, -1)
    return canonical(np.max(np.abs(x), axis=axes, initial=np.float32(0)))


def global_scale(g: np.ndarray, emax: float = E4M3_MAX) -> np.ndarray:
    """Step 1: S, which maps the amax G to the largest product of an element and a block scale."""
    s = np.minimum(np.float32(E2M1_MAX * emax) / g, FLT_MAX)
    return np.where((g == 0) | (s == 0), ONE, s)


def inverse_scale(s: np.ndarray) -> np.ndarray:
    """Step 2: D."""
    return ONE / s


def block_amax(x: np.ndarray, tile: bool) -> np.ndarray:
    """Step 3: B (..., R, C/16), the largest magnitude of each block of float32 x (..., R, C).

    The amax of a 16x16 tile is replicated into its 16 rows (section 4).
    """
    *batch, rows, columns = x.shape
    strips = np.abs(x).reshape(*batch, rows, columns // BLOCK, BLOCK).max(-1)
    if not tile:
        return strips
    tiles = strips.reshape(*batch, rows // BLOCK, BLOCK, columns // BLOCK).max(-2)
    return np.repeat(tiles, BLOCK, axis=-2)


def block_term(b: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Step 4: p, the block term, rounded once, and clamped."""
    return np.minimum(b * (s * ONE_SIXTH), np.float32(E4M3_MAX))


def exact_reciprocal(d: np.ndarray) -> np.ndarray:
    """Correctly rounded."""
    return ONE / d


def element_scale(scales: np.ndarray, d: np.ndarray, reciprocal: Reciprocal = exact_reciprocal) -> np.ndarray:
    """Step 5: e, the factor that brings the elements of a block onto the E2M1 grid."""
    return np.minimum(reciprocal(e4m3.decode(scales) * d), FLT_MAX)


def block_factor(scales: np.ndarray, g: np.ndarray, emax: float = E4M3_MAX) -> np.ndarray:
    """Step 7: f, the value of one E2M1 unit of a block."""
    return (e4m3.decode(scales) * g) * (ONE / np.float32(E2M1_MAX * emax))


def per_block(g: np.ndarray, ndim: int) -> np.ndarray:
    """An amax (...,) or (..., R) with the axes that broadcast it against blocks (..., R, C/16)."""
    return g.reshape(g.shape + (1,) * (ndim - g.ndim))


def per_element(block_values: np.ndarray) -> np.ndarray:
    """Block values (..., R, C/16) repeated for the elements (..., R, C)."""
    return np.repeat(block_values, BLOCK, axis=-1)


def canonical(y: np.ndarray) -> np.ndarray:
    """y with every NaN replaced by the canonical one."""
    return np.where(np.isnan(y), np.float32("nan"), y)


# All of them.


@np.errstate(all="ignore")
def quantize_steps(
    v: np.ndarray,
    g: np.ndarray,
    spec: QuantSpec,
    random: np.ndarray | None = None,
    reciprocal: Reciprocal = exact_reciprocal,
) -> Steps:
    """Steps 1 to 6, or section 5 where the spec asks for it.

    Args:
        v: float32 (..., R, C), laid out along its blocks; for 16x16 tiles as x is.
        g: float32, broadcast against the blocks (..., R, C/16).
        spec: block, and how block scales are chosen.
        random: uint8 (..., R, C), a random byte per element; None rounds to nearest.
        reciprocal: of step 5 (section 7).
    """
    s_global = global_scale(g, spec.emax)
    d = inverse_scale(s_global)
    b = block_amax(v, spec.is_tile)

    def candidate(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block scale, element scale and codes that follow from p: steps 4 to 6."""
        scales = e4m3.encode(p)
        e = element_scale(scales, d, reciprocal)
        scaled = v * per_element(e)
        return scales, e, e2m1.encode(scaled) if random is None else stochastic.encode(scaled, random)

    choice = spec.four_over_six
    if choice is None:
        p = block_term(b, s_global)
        return Steps(v, g, s_global, d, b, p, *candidate(p))

    terms = four_over_six.block_terms(b, s_global)
    candidates = [candidate(p) for p in terms]
    s_of_element, g_of_element = (per_element(np.broadcast_to(value, b.shape)) for value in (s_global, g))
    errors = []
    for scales, _, codes in candidates:
        unit = per_element(e4m3.decode(scales))
        difference = four_over_six.differences(v, codes, unit, s_of_element, g_of_element, choice)
        strips = four_over_six.strip_errors(difference, choice)
        errors.append(four_over_six.tile_errors(strips) if spec.is_tile else strips)
    four = four_over_six.picks_four(*errors)
    six, other = ((p, scales.view(np.uint8), e, codes) for p, (scales, e, codes) in zip(terms, candidates, strict=True))
    where = (four, four, four, per_element(four))
    p, scales, e, codes = (np.where(w, new, old) for w, new, old in zip(where, other, six, strict=True))
    return Steps(v, g, s_global, d, b, p, scales.view(e4m3.DTYPE), e, codes, (errors[0], errors[1]))
