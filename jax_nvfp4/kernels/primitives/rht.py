"""The random Hadamard transform of blocks of 16 (section 3)."""

from __future__ import annotations

from cutlass import Uint32

from jax_nvfp4.kernels.primitives import operand, ptx
from jax_nvfp4.mode import NO_RHT

SIZE = 16
QUARTER_BITS = 0x3E800000  # of the float32 0.25


def is_wanted(variant) -> bool:
    """Whether the columns of a variant are transformed."""
    return variant.mode.col is not None and variant.mode.col.rht != NO_RHT


def factors(signs) -> list:
    """What each element is multiplied by first, a quarter with the sign that a bit of `signs` (Uint32) says."""
    return [ptx.from_bits(Uint32(QUARTER_BITS) | ((signs << Uint32(31 - i)) & Uint32(0x80000000))) for i in range(SIZE)]


def transform(words, quarters: list, dtype: str) -> list:
    """The transform of a block, see `operand`, rounded to its dtype.

    Every product and sum is an instruction of its own, in the order of the contract: butterflies of stride 1, 2, 4, 8.
    """
    values = [ptx.mul(x, quarter) for x, quarter in zip(operand.widen(words, dtype), quarters, strict=True)]
    distance = 1
    while distance < SIZE:
        for i in range(SIZE):
            if not i & distance:
                a, b = values[i], values[i + distance]
                values[i], values[i + distance] = ptx.add(a, b), ptx.subtract(a, b)
        distance *= 2
    return operand.narrow(values, dtype)
