"""MXFP8, 8-bit elements with E8M0 scales in blocks of 32: one function per step of docs/numerics.md section 8."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jax_nvfp4.formats import Format
from jax_nvfp4.oracle import e4m3, e8m0
from jax_nvfp4.spec import QuantSpec

ONE = np.float32(1)


class Steps(NamedTuple):
    """The named intermediates of section 8, for an operand (..., R, C) laid out along its blocks.

    Attributes:
        v: float32 (..., R, C), the operand.
        A: float32 (..., R, C/32), the block amax.
        s: float8_e8m0fnu (..., R, C/32), the scale whose byte is b.
        e: float32 (..., R, C/32), 2^(127 - b).
        codes: float8 (..., R, C), the elements.
    """

    v: np.ndarray
    A: np.ndarray
    s: np.ndarray
    e: np.ndarray
    codes: np.ndarray


def block_amax(v: np.ndarray, block: int) -> np.ndarray:
    """A, the largest magnitude of each block, NaN if it holds one: (..., R, C) -> (..., R, C/block)."""
    return np.abs(v).reshape(*v.shape[:-1], v.shape[-1] // block, block).max(-1)


def block_scale(a: np.ndarray, spec: QuantSpec) -> np.ndarray:
    """The E8M0 scale of blocks with amax `a`: RCEIL of fl(a * fl(1/largest element)), or FLOOR."""
    largest = spec.facts.code_max
    if spec.scale_rounding == "floor":
        return e8m0.encode_down(a, int(np.log2(largest)))
    return e8m0.encode_up(a * (ONE / np.float32(largest)))


@np.errstate(all="ignore")
def quantize_steps(v: np.ndarray, spec: QuantSpec) -> Steps:
    """All steps for float32 v (..., R, C), C a multiple of 32."""
    facts = spec.facts
    a = block_amax(v, facts.block)
    s = block_scale(a, spec)
    e = e8m0.inverse(s)
    return Steps(v, a, s, e, e4m3.encode(v * np.repeat(e, facts.block, axis=-1), np.dtype(code_dtype(facts))))


def code_dtype(facts: Format) -> np.dtype:
    """The dtype of the elements."""
    return e4m3.E5M2 if facts.code_dtype == "float8_e5m2" else e4m3.DTYPE


def values(codes: np.ndarray, scales: np.ndarray, block: int) -> np.ndarray:
    """Element times scale, one float32 product: (..., R, C) of codes, (..., R, C/block) of scales."""
    return e4m3.decode(codes) * np.repeat(e8m0.decode(scales), block, axis=-1)
