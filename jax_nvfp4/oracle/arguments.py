"""What the operations of the oracle accept."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.oracle.container import Quantized
from jax_nvfp4.spec import QuantSpec


def float_dtype(dtype: DTypeLike) -> np.dtype:
    """`dtype`, if it can be quantized and dequantized."""
    if np.dtype(dtype).name not in FLOAT_DTYPES:
        raise TypeError(f"dtype must be one of {FLOAT_DTYPES}, got {np.dtype(dtype).name}: convert first")
    return np.dtype(dtype)


def widened(x: np.ndarray) -> np.ndarray:
    """x in float32, which holds every input exactly, subnormals included."""
    float_dtype(x.dtype)
    if x.ndim < 2:
        raise ValueError(f"x must be (..., M, K), got shape {x.shape}: add the missing axis")
    return x.astype(np.float32)


def whole_blocks(shape: tuple[int, ...], spec: QuantSpec, axis: int) -> None:
    """Raise unless an operand of `shape` can be quantized like that along `axis`."""
    if axis not in (-1, -2):
        raise ValueError(f"axis must be -1 or -2, got {axis}: only the last two axes hold blocks")
    if axis == -2 and spec.scope == "row":
        raise ValueError("scope 'row' needs axis=-1, got axis=-2: use scope='tensor' for the columnwise operand")
    if axis == -1 and spec.rht is not None:
        raise ValueError("the Hadamard transform runs along axis=-2 only, got axis=-1: use a spec without rht")
    block = spec.facts.block
    for blocked in (-1, -2) if spec.is_tile else (axis,):
        if shape[blocked] % block:
            raise ValueError(
                f"axis {blocked} of x must be a multiple of {block} for {spec.block} blocks, got {shape[blocked]}: "
                "pad it with zeros"
            )


def rounding(spec: QuantSpec, key: object, origin: object) -> None:
    """Raise unless the rounding that `key` and `origin` ask for is defined for `spec`."""
    if key is None and origin is not None:
        raise ValueError("origin selects random numbers, got one without a key: pass key or drop origin")
    if key is None:
        return
    if spec.is_tile:
        raise ValueError("16x16 blocks are never rounded stochastically, got a key: use (1, 16) blocks or key=None")
    if spec.four_over_six is not None:
        raise ValueError("four-over-six is never rounded stochastically, got a key: use key=None")
    if not spec.facts.has_amax:
        raise ValueError(f"format {spec.format!r} is never rounded stochastically, got a key: use key=None")


def exact(spec: QuantSpec) -> None:
    """Raise for fast math, which an operation with one result does not have."""
    if spec.math == "fast":
        raise ValueError("fast math belongs to the row and column quantize (section 7): use math='exact'")


def same_math(spec: QuantSpec, col_spec: QuantSpec) -> None:
    """Raise unless the row result can share the math of the column result, which alone can ask for fast math."""
    is_plain = spec.facts.has_amax and not spec.is_tile and spec.four_over_six is None
    if col_spec.math == "fast" and not is_plain:
        raise ValueError("fast math holds for both results, so the rows need (1, 16) blocks with the standard scale")


def not_grouped(spec: QuantSpec) -> None:
    """Raise for a spec that needs groups."""
    if spec.scope == "group":
        raise ValueError("scope 'group' needs group sizes: use a grouped operation")


def amax_shape(shape: tuple[int, ...], spec: QuantSpec, groups: int = 0) -> tuple[int, ...]:
    """The shape of the amax of an operand that is laid out in `shape`."""
    return (*shape[:-2], *{"tensor": (), "row": shape[-2:-1], "group": (groups,)}[spec.scope])


def given_amax(amax: ArrayLike, shape: tuple[int, ...], spec: QuantSpec, groups: int = 0) -> np.ndarray:
    """`amax` as float32 of the shape that `spec` asks for; one value serves all."""
    if not spec.facts.has_amax:
        raise ValueError(f"format {spec.format!r} has no amax, got one: drop amax")
    g = np.asarray(amax, np.float32) if isinstance(amax, int | float) else np.asarray(amax)
    if g.dtype != np.float32:
        raise TypeError(f"amax must be float32, got {g.dtype}: convert it first")
    expected = amax_shape(shape, spec, groups)
    if g.shape not in ((), expected):
        raise ValueError(f"amax must have shape {expected} or be one for all, got {g.shape}")
    return np.broadcast_to(g, expected)


def quantized(t: Quantized) -> None:
    """Raise unless codes, scales and amax of `t` fit each other and its spec."""
    facts = t.spec.facts
    if t.codes.dtype != facts.code_dtype or t.scales.dtype != facts.scale_dtype:
        raise TypeError(
            f"codes must be {facts.code_dtype} and scales {facts.scale_dtype}, got {t.codes.dtype} and {t.scales.dtype}"
        )
    if t.codes.ndim < 2 or t.stored_shape[-1] % facts.block:
        raise ValueError(f"codes must hold rows of C elements, C a multiple of {facts.block}, got {t.codes.shape}")
    *batch, rows, columns = t.stored_shape
    expected = (*batch, *facts.scale_shape(rows, columns, t.spec.scale_layout))
    if t.scales.shape != expected:
        raise ValueError(f"codes {t.codes.shape} need {t.spec.scale_layout} scales {expected}, got {t.scales.shape}")
    if facts.has_amax:
        groups = 0 if t.group_sizes is None else t.group_sizes.shape[-1]
        if not isinstance(t.amax, np.ndarray | np.generic) or t.amax.dtype != np.float32:
            raise TypeError(f"amax must be float32, got {getattr(t.amax, 'dtype', t.amax)}")
        if t.amax.shape != amax_shape(t.stored_shape, t.spec, groups):
            raise ValueError(f"amax must have shape {amax_shape(t.stored_shape, t.spec, groups)}, got {t.amax.shape}")
