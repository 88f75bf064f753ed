"""NVFP4 with two-level scaling: one function per step of docs/numerics.md sections 2 and 4.

Every arithmetic operation is one float32 NumPy operation, so the order of the operations below is the contract.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX, FLOAT_DTYPES, NVFP4_FORMAT, ScaleLayout
from jax_nvfp4.oracle import e2m1, e4m3, stochastic
from jax_nvfp4.oracle.swizzle import swizzle_scales, unswizzle_scales
from jax_nvfp4.spec import NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.spec import ScopeName as Scope

BLOCK = NVFP4_FORMAT.block
ONE = np.float32(1)
FLT_MAX = np.finfo(np.float32).max
ONE_SIXTH = ONE / np.float32(E2M1_MAX)


class Quantized(NamedTuple):
    """Packed codes, block scales and amax of one operand.

    For axis -1, codes are uint8 (..., M, K/2) and scales float8_e4m3fn (..., M, K/16); for axis -2 they are laid
    out transposed, (..., K, M/2) and (..., K, M/16). Swizzled scales have the padded shape of section 9.
    amax is float32 (...,), or (..., M) with scope "row".
    """

    codes: np.ndarray
    scales: np.ndarray
    amax: np.ndarray


# The steps of section 2. np.minimum, np.maximum and max() propagate NaN from either operand, as the contract asks.


def reduce_amax(x: np.ndarray, scope: Scope) -> np.ndarray:
    """G, the largest magnitude of each matrix or of each row of float32 x; 0 for an empty one."""
    axes = -1 if scope == "row" else (-2, -1)
    return canonical(np.max(np.abs(x), axis=axes, initial=np.float32(0)))


def global_scale(g: np.ndarray) -> np.ndarray:
    """Step 1: S, which maps the amax G to the largest product of an element and a block scale."""
    s = np.minimum(np.float32(E2M1_MAX * E4M3_MAX) / g, FLT_MAX)
    return np.where((g == 0) | (s == 0), ONE, s)


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


def block_scale(b: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Step 4: the float8_e4m3fn block scale; the block term is rounded once, before E4M3."""
    return e4m3.encode(np.minimum(b * (s * ONE_SIXTH), np.float32(E4M3_MAX)))


def element_scale(scales: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Steps 2 and 5: e, the factor that brings the elements of a block onto the E2M1 grid."""
    d = ONE / s
    return np.minimum(ONE / (e4m3.decode(scales) * d), FLT_MAX)


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


# The public operations.


def amax(x: np.ndarray, *, scope: Scope = "tensor") -> np.ndarray:
    """The largest magnitude of each scope, NaN if the scope holds one (section 2).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        scope: "tensor", the trailing matrix, or "row".

    Returns:
        float32 (...,), or (..., M) for scope "row".
    """
    return reduce_amax(_widened(x), QuantSpec(scope=scope).scope)


@np.errstate(all="ignore")
def quantize(
    x: np.ndarray,
    spec: QuantSpec = NVFP4,
    *,
    axis: int = -1,
    amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
) -> Quantized:
    """Quantizes x in blocks of 16 along `axis`, or in 16x16 tiles (sections 2, 4 and 6).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        spec: block, scope of the amax and layout of the scales.
        axis: -1, or -2 for the transposed operand whose blocks run along the rows of x.
        amax: float32 of the shape that `amax(x, scope=spec.scope)` has; None computes it.
        key: two uint32 words, (2,) or (..., 2), for stochastic rounding; None rounds to nearest.
        origin: uint32 (..., 3), batch word, row and column at which x starts in the global operand (section 6).

    Returns:
        Quantized codes, scales and the amax that was used.

    Raises:
        TypeError: x, amax or key has an unsupported dtype.
        ValueError: a shape, the axis, or a combination the contract does not define.
    """
    x = _widened(x)
    _check_blocks(x.shape, spec, axis, key, origin)
    g = reduce_amax(x, spec.scope) if amax is None else _given_amax(amax, x.shape, (spec.scope,))
    v = x if axis == -1 else np.swapaxes(x, -1, -2)

    s = per_block(global_scale(g), v.ndim)
    scales = block_scale(block_amax(v, spec.is_tile), s)
    scaled = v * per_element(element_scale(scales, s))
    if key is None:
        codes = e2m1.encode(scaled)
    else:
        codes = stochastic.encode(scaled, stochastic.random_bytes(v.shape, axis, key, origin))
    return Quantized(e2m1.pack(codes), swizzle_scales(scales) if spec.scale_layout == "swizzled" else scales, g)


def quantize_dual(
    x: np.ndarray, spec: QuantSpec = NVFP4_2D, *, amax: ArrayLike | None = None
) -> tuple[Quantized, Quantized]:
    """Quantizes x in 16x16 tiles along both axes, with one scale per tile shared by both (section 4).

    Args:
        x: (..., M, K), M and K multiples of 16.
        spec: 16x16 blocks, in either scale layout.
        amax: float32 (...,); None computes it.

    Returns:
        The rowwise and the columnwise operand; element (i, j) of x has the same code in both.

    Raises:
        TypeError, ValueError: as `quantize`; ValueError also for 1x16 blocks.
    """
    if not spec.is_tile:
        raise ValueError(f"quantize_dual needs 16x16 blocks, got {spec.block}: call quantize once for each axis")
    row = quantize(x, spec, axis=-1, amax=amax)
    return row, quantize(x, spec, axis=-2, amax=row.amax)


@np.errstate(all="ignore")
def dequantize(
    codes: np.ndarray,
    scales: np.ndarray,
    amax: ArrayLike,
    dtype: DTypeLike = "bfloat16",
    *,
    emax: float = E4M3_MAX,
    scale_layout: ScaleLayout = "linear",
) -> np.ndarray:
    """The values of a quantized operand, in the layout of its codes (section 2.7).

    Args:
        codes: uint8 (..., R, C/2).
        scales: float8_e4m3fn (..., R, C/16), or swizzled.
        amax: float32 (...,) or (..., R), told apart by rank.
        dtype: bfloat16, float16 or float32.
        emax: the largest block scale used when quantizing, 448 or 256.
        scale_layout: layout of `scales`.

    Returns:
        (..., R, C) of `dtype`, rounded once from float32; NaN is canonical.

    Raises:
        TypeError: `dtype` or the dtype of an operand is not supported.
        ValueError: the shapes do not belong together.
    """
    if scale_layout == "swizzled":
        scales = unswizzle_scales(scales, (*codes.shape[:-1], codes.shape[-1] * 2 // BLOCK))
    _check_codes(codes, scales)
    g = _given_amax(amax, codes.shape, ("tensor", "row"))
    f = block_factor(scales, per_block(g, codes.ndim), emax)
    y = e2m1.decode(e2m1.unpack(codes)) * per_element(f)
    return canonical(y).astype(_float_dtype(dtype))


@np.errstate(all="ignore")
def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Code times block scale, without the tensor scale: exact in bfloat16 (section 2.8).

    Args:
        codes: uint8 (..., R, C/2).
        scales: float8_e4m3fn (..., R, C/16), linear.

    Returns:
        bfloat16 (..., R, C); NaN is canonical.

    Raises:
        TypeError, ValueError: as `dequantize`.
    """
    _check_codes(codes, scales)
    y = e2m1.decode(e2m1.unpack(codes)) * per_element(e4m3.decode(scales))
    return canonical(y).astype(_float_dtype("bfloat16"))


def qdq(x: np.ndarray, spec: QuantSpec = NVFP4, *, amax: ArrayLike | None = None) -> np.ndarray:
    """dequantize(quantize(x)) along the last axis, in the dtype of x (section 2.7).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        spec: block and scope of the amax; the scale layout does not matter.
        amax: as for `quantize`.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        TypeError, ValueError: as `quantize`.
    """
    return dequantize(*quantize(x, spec, amax=amax), dtype=x.dtype, scale_layout=spec.scale_layout)


# What the operations accept.


def _float_dtype(dtype: DTypeLike) -> np.dtype:
    if np.dtype(dtype).name not in FLOAT_DTYPES:
        raise TypeError(f"dtype must be one of {FLOAT_DTYPES}, got {np.dtype(dtype).name}: convert first")
    return np.dtype(dtype)


def _widened(x: np.ndarray) -> np.ndarray:
    """x in float32, which holds every input exactly, subnormals included."""
    _float_dtype(x.dtype)
    if x.ndim < 2:
        raise ValueError(f"x must be (..., M, K), got shape {x.shape}: add the missing axis")
    return x.astype(np.float32)


def _given_amax(amax: ArrayLike, shape: tuple[int, ...], scopes: tuple[Scope, ...]) -> np.ndarray:
    g = np.asarray(amax, np.float32) if isinstance(amax, (int, float)) else np.asarray(amax)
    if g.dtype != np.float32:
        raise TypeError(f"amax must be float32, got {g.dtype}: convert it first")
    expected = [shape[:-1] if scope == "row" else shape[:-2] for scope in scopes]
    if g.shape not in expected:
        raise ValueError(f"amax must have shape {' or '.join(map(str, expected))}, got {g.shape}")
    return g


def _check_blocks(shape: tuple[int, ...], spec: QuantSpec, axis: int, key: object, origin: object) -> None:
    if axis not in (-1, -2):
        raise ValueError(f"axis must be -1 or -2, got {axis}: only the last two axes hold blocks")
    if axis == -2 and spec.scope == "row":
        raise ValueError("scope 'row' needs axis=-1, got axis=-2: use scope='tensor' for the columnwise operand")
    for blocked in (-1, -2) if spec.is_tile else (axis,):
        if shape[blocked] % BLOCK:
            raise ValueError(
                f"axis {blocked} of x must be a multiple of {BLOCK} for {spec.block} blocks, got {shape[blocked]}: "
                "pad it with zeros"
            )
    if key is not None and spec.is_tile:
        raise ValueError("16x16 blocks are never rounded stochastically, got a key: use (1, 16) blocks or key=None")
    if key is None and origin is not None:
        raise ValueError("origin selects random numbers, got one without a key: pass key or drop origin")


def _check_codes(codes: np.ndarray, scales: np.ndarray) -> None:
    if codes.dtype != np.uint8 or scales.dtype != e4m3.DTYPE:
        raise TypeError(f"codes must be uint8 and scales {e4m3.DTYPE}, got {codes.dtype} and {scales.dtype}")
    if codes.ndim < 2 or codes.shape[-1] * 2 % BLOCK:
        raise ValueError(f"codes must be (..., R, C/2) with C a multiple of {BLOCK}, got shape {codes.shape}")
    expected = (*codes.shape[:-1], codes.shape[-1] * 2 // BLOCK)
    if scales.shape != expected:
        raise ValueError(f"codes {codes.shape} need linear scales {expected}, got {scales.shape}: unswizzle them first")
