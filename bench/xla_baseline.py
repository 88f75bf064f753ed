"""What a user would write today: the operations in plain jax.numpy, compiled by XLA.

The benchmarks measure against these. They are no reference for bits: XLA contracts, reassociates and flushes, and
zero, NaN and Inf are handled only as far as ordinary training data needs.

E2M1 has no single natural spelling in jax.numpy, and which one XLA compiles better depends on the device. So the
functions that round or decode take `style`, and the benchmarks count the faster one:

* "cast": `float4_e2m1fn` casts and bitcasts;
* "arithmetic": comparisons, rounding to a step and a table of values.

MXFP8 columns are transposed as "operand" or as "codes".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4 import QuantSpec
from jax_nvfp4 import swizzle_scales as swizzle
from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.testing import Case, random_key

Style = Literal["cast", "arithmetic"]
STYLES: tuple[Style, ...] = ("cast", "arithmetic")

BLOCK, CODE_MAX, SCALE_MAX = NVFP4_FORMAT.block, NVFP4_FORMAT.code_max, NVFP4_FORMAT.scale_max
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
MIDPOINTS = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])


def versions(case: Case, computes_amax: bool = False) -> dict[str, Callable]:
    """Style -> XLA's version of a case, a function of the operands of `case.call` that returns the same."""
    scope, axis = case.spec.scope, case.axes[0]
    if case.verb == "quantize" and not case.spec.facts.has_amax:
        function = mx_quantize_dual if case.is_dual else functools.partial(mx_quantize, axis=axis)
        return {turned: functools.partial(function, spec=case.spec, turned=turned) for turned in ("operand", "codes")}
    if case.verb == "amax":
        return {"": lambda x: (amax(x, scope),)}
    facts = {"tile": case.spec.is_tile} if case.verb in ("quantize", "qdq") and not case.is_dual else {}
    if case.verb == "quantize":
        facts |= {"swizzled": case.is_swizzled}
        facts |= {} if case.is_dual else {"axis": axis, "key": random_key() if case.is_stochastic else None}
    if case.reads_codes:
        facts |= {"axis": axis, "is_scaled": case.verb == "dequantize", "dtype": case.dtype}
    function = {"quantize": quantize_dual if case.is_dual else quantize, "qdq": qdq}.get(case.verb, dequantize)
    if case.is_dual and not case.spec.is_tile or case.reads_codes and case.is_swizzled:
        raise NotImplementedError(f"nobody has written {case.name} in jax.numpy yet")
    styles = {style: functools.partial(function, style=style, **facts) for style in STYLES}
    if computes_amax:
        return {style: lambda x, f=f: f(x, amax(x, scope)) for style, f in styles.items()}
    return styles


def amax(x, scope: str = "tensor") -> jax.Array:
    """(M, K) -> float32 scalar, or (M,) for scope "row"."""
    return jnp.max(jnp.abs(x), axis=-1 if scope == "row" else None).astype(jnp.float32)


def quantize(
    x, amax, *, axis: int = -1, tile: bool = False, swizzled: bool = False, key=None, style: Style = "cast"
) -> tuple[jax.Array, jax.Array]:
    """(M, K) and its amax -> packed codes and block scales along `axis`, the columnwise ones transposed."""
    scaled, scales = _scaled(x if axis == -1 else x.T, amax, tile)
    if key is not None:
        scaled = _stochastic(scaled, key)
    return _pack(_codes(scaled, style)), swizzle(scales) if swizzled else scales


def quantize_dual(x, amax, *, swizzled: bool = False, style: Style = "cast") -> tuple[jax.Array, ...]:
    """(M, K) and its amax -> codes and scales in square tiles, rowwise, then columnwise."""
    scaled, scales = _scaled(x, amax, tile=True)
    codes = _codes(scaled, style)
    column_scales = jnp.repeat(scales[::BLOCK].T, BLOCK, axis=0)
    if swizzled:
        scales, column_scales = swizzle(scales), swizzle(column_scales)
    return _pack(codes), scales, _pack(codes.T), column_scales


def mx_quantize(x, *, spec: QuantSpec, axis: int = -1, turned: str = "operand") -> tuple[jax.Array, jax.Array]:
    """(M, K) -> MXFP8 elements and their scales along `axis`, the columnwise ones transposed."""
    if axis == -2 and turned == "operand":
        x, axis = x.T, -1
    facts, (rows, columns) = spec.facts, x.shape
    block, largest = facts.block, facts.code_max
    shape = (rows, columns // block, block) if axis == -1 else (rows // block, block, columns)
    blocks = x.astype(jnp.float32).reshape(shape)
    a = jnp.max(jnp.abs(blocks), axis=axis, keepdims=True)
    if spec.scale_rounding == "floor":
        exponent = jax.lax.bitcast_convert_type(a, jnp.int32) >> 23
        scales = jnp.maximum(exponent - math.frexp(largest)[1] + 1, 0)
    else:
        scales = jnp.minimum(jax.lax.bitcast_convert_type(a * np.float32(1 / largest), jnp.int32) + 0x7FFFFF >> 23, 255)
    scaled = blocks * jax.lax.bitcast_convert_type(254 - scales << 23, jnp.float32)
    codes = jnp.clip(scaled, -largest, largest).astype(facts.code_dtype).reshape(rows, columns)
    scales = jax.lax.bitcast_convert_type(scales.astype(jnp.uint8).squeeze(axis), jnp.dtype(facts.scale_dtype))
    if axis == -2:
        codes, scales = codes.T, scales.T
    return codes, swizzle(scales) if spec.scale_layout == "swizzled" else scales


def mx_quantize_dual(x, *, spec: QuantSpec, turned: str = "operand") -> tuple[jax.Array, ...]:
    """`mx_quantize` along both axes."""
    return *mx_quantize(x, spec=spec), *mx_quantize(x, spec=spec, axis=-2, turned=turned)


def dequantize(
    codes, scales, amax, *, axis: int = -1, is_scaled: bool = True, dtype: str = "bfloat16", style: Style = "cast"
) -> tuple[jax.Array]:
    """Packed codes (R, C/2), linear scales and amax -> numbers of `dtype`; not `is_scaled`: as stored, without amax."""
    if style == "cast":
        values = jax.lax.bitcast_convert_type(codes, jnp.float4_e2m1fn).astype(jnp.float32)
    else:
        values = jnp.asarray(VALUES)[jnp.stack([codes & 15, codes >> 4], -1)]
    y = _rescaled(values.reshape(*scales.shape, BLOCK), scales, amax if is_scaled else None).astype(dtype)
    return (y.T if is_scaled and axis == -2 else y,)


def qdq(x, amax, *, tile: bool = False, style: Style = "cast") -> tuple[jax.Array]:
    """(M, K) and its amax -> the numbers that its rowwise quantization stands for."""
    scaled, scales = _scaled(x, amax, tile)
    scaled = jnp.clip(scaled, -CODE_MAX, CODE_MAX)
    if style == "cast":
        values = scaled.astype(jnp.float4_e2m1fn).astype(jnp.float32)
    else:
        step = _step(jnp.abs(scaled))
        values = jnp.round(scaled / step) * step
    return (_rescaled(values, scales, amax).astype(x.dtype),)


def _scaled(x, amax, tile: bool) -> tuple[jax.Array, jax.Array]:
    """x in units of the E2M1 grid, float32 (M, K/16, 16), and its block scales (M, K/16)."""
    blocks = x.astype(jnp.float32).reshape(x.shape[0], -1, BLOCK)
    global_scale = _of_blocks(jnp.where(amax > 0, CODE_MAX * SCALE_MAX / amax, 1))
    block_amax = jnp.max(jnp.abs(blocks), axis=-1)
    if tile:
        tiles = jnp.max(block_amax.reshape(-1, BLOCK, block_amax.shape[1]), axis=1)
        block_amax = jnp.repeat(tiles, BLOCK, axis=0)
    scales = jnp.minimum(block_amax * (global_scale / CODE_MAX), SCALE_MAX).astype(NVFP4_FORMAT.scale_dtype)
    wide = scales.astype(jnp.float32)
    return blocks * jnp.where(wide > 0, global_scale / wide, 0)[..., None], scales


def _of_blocks(amax) -> jax.Array:
    """An amax, or one per row, that broadcasts against (M, K/16)."""
    return amax[:, None] if amax.ndim else amax


def _step(magnitude) -> jax.Array:
    """The distance of E2M1 numbers around a magnitude."""
    return jnp.where(magnitude < 2, 0.5, jnp.where(magnitude < 4, 1.0, 2.0))


def _stochastic(scaled, key) -> jax.Array:
    """E2M1 numbers, each the lower or the upper neighbour, at random."""
    magnitude = jnp.minimum(jnp.abs(scaled), CODE_MAX)
    step = _step(magnitude)
    up = jax.random.uniform(key, scaled.shape, jnp.float32)
    return jnp.copysign(jnp.minimum(jnp.floor(magnitude / step + up) * step, CODE_MAX), scaled)


def _codes(scaled, style: Style) -> jax.Array:
    """E2M1 elements (M, K), as float4_e2m1fn or as codes, one a byte."""
    if style == "cast":
        elements = jnp.clip(scaled, -CODE_MAX, CODE_MAX).astype(jnp.float4_e2m1fn)
    else:
        magnitude = jnp.abs(scaled)
        elements = jnp.signbit(scaled).astype(jnp.uint8) << 3
        for lower, midpoint in enumerate(MIDPOINTS):
            elements += (magnitude >= midpoint if lower % 2 else magnitude > midpoint).astype(jnp.uint8)
    return elements.reshape(elements.shape[0], -1)


def _pack(elements) -> jax.Array:
    """(M, K) elements -> (M, K/2) bytes."""
    if elements.dtype == jnp.uint8:
        return elements[:, 0::2] | elements[:, 1::2] << 4
    return jax.lax.bitcast_convert_type(elements.reshape(elements.shape[0], -1, 2), jnp.uint8)


def _rescaled(values, scales, amax) -> jax.Array:
    """(M, K/16, 16) grid values -> (M, K) numbers; without an amax times the block scales only."""
    factor = scales.astype(jnp.float32)
    if amax is not None:
        factor = factor * _of_blocks(amax / (CODE_MAX * SCALE_MAX))
    return (values * factor[..., None]).reshape(values.shape[0], -1)
