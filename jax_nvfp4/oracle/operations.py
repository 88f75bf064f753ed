"""The public operations on dense operands, made of the steps of the other modules (docs/numerics.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from jax_nvfp4.oracle import arguments, e2m1, e4m3, fast, mxfp8, nvfp4, rht, stochastic
from jax_nvfp4.oracle.container import Quantized
from jax_nvfp4.oracle.groups import Groups
from jax_nvfp4.oracle.swizzle import swizzle_scales, unswizzle_group_scales, unswizzle_scales
from jax_nvfp4.spec import NVFP4, RHT, QuantSpec, ScopeName

Steps = nvfp4.Steps | mxfp8.Steps


def amax(
    x: np.ndarray, *, scope: ScopeName = "tensor", rht: RHT | None = None, dual: bool = False
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The largest magnitude of each scope, NaN if the scope holds one (sections 2 and 3).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        scope: "tensor", the trailing matrix, or "row".
        rht: that of the columnwise operand after this transform instead, rounded to the dtype of x; M is a multiple
            of 16.
        dual: both, for `quantize_dual`.

    Returns:
        float32 (...,), or (..., M) for scope "row"; with `dual` a pair, (row amax, column amax).

    Raises:
        TypeError: another dtype.
        ValueError: a shape, an unknown scope, or a transform with scope "row".
    """
    spec = QuantSpec(scope=scope, rht=rht)
    arguments.not_grouped(spec)
    wide = arguments.widened(x)
    row = nvfp4.reduce_amax(wide, scope == "row")
    column = row
    if spec.rht is not None:
        arguments.whole_blocks(x.shape, spec, -2)
        column = nvfp4.reduce_amax(operand(x, spec, -2))
    return (row, column) if dual else column


def operand(x: np.ndarray, spec: QuantSpec, axis: int) -> np.ndarray:
    """x in float32 and laid out along its blocks, transformed where the spec says so (section 3).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        spec: of the result; its math says whether the transform is rounded to the dtype of x (section 7).
        axis: -1 or -2.

    Returns:
        float32 (..., M, K), or (..., K, M) for axis -2.
    """
    wide = arguments.widened(x)
    if axis == -1:
        return wide
    if spec.rht is None:
        return np.swapaxes(wide, -1, -2)
    y = rht.transform(wide, spec.rht)
    return y if spec.math == "fast" else rht.rounded(y, x.dtype)


def make_steps(
    x: np.ndarray,
    g: np.ndarray | None,
    spec: QuantSpec,
    axis: int,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
    *,
    math: str = "exact",
) -> Steps:
    """Every step of quantizing checked arguments; `g` is broadcast against the blocks."""
    if not spec.facts.has_amax:
        return mxfp8.quantize_steps(operand(x, spec, axis), spec)
    assert g is not None
    reciprocal = fast.reciprocal if math == "fast" else nvfp4.exact_reciprocal
    if spec.is_tile and axis == -2:
        # One decision a tile, made in the layout of x (sections 4 and 5).
        return _transposed(nvfp4.quantize_steps(arguments.widened(x), g, spec, reciprocal=reciprocal))
    v = operand(x, spec, axis)
    random = None if key is None else stochastic.random_bytes(v.shape, axis, key, origin)
    return nvfp4.quantize_steps(v, g, spec, random, reciprocal)


def _transposed(steps: nvfp4.Steps) -> nvfp4.Steps:
    """The steps of 16x16 tiles in the layout of the columnwise operand."""

    def tiles(block_values):
        return np.repeat(np.swapaxes(block_values[..., :: nvfp4.BLOCK, :], -1, -2), nvfp4.BLOCK, axis=-2)

    return steps._replace(
        v=np.swapaxes(steps.v, -1, -2),
        B=tiles(steps.B),
        p=tiles(steps.p),
        s=tiles(steps.s),
        e=tiles(steps.e),
        codes=np.swapaxes(steps.codes, -1, -2),
        errors=steps.errors and (tiles(steps.errors[0]), tiles(steps.errors[1])),
    )


def packed(steps: Steps, spec: QuantSpec) -> np.ndarray:
    """Codes as they are stored."""
    return e2m1.pack(steps.codes) if spec.facts.codes_per_byte == 2 else steps.codes


def _resolved_amax(x: np.ndarray, spec: QuantSpec, given: ArrayLike | None) -> np.ndarray | None:
    if given is not None:
        return arguments.given_amax(given, x.shape, spec)
    if not spec.facts.has_amax:
        return None
    return np.asarray(amax(x, scope=spec.scope, rht=spec.rht))


def intermediates(
    x: np.ndarray,
    spec: QuantSpec = NVFP4,
    *,
    axis: int = -1,
    amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
) -> Steps:
    """What `quantize` computes on its way, named as in docs/numerics.md, for debugging another implementation.

    Args:
        x, axis, amax, key, origin: as in `quantize`.
        spec: likewise; here it may ask for fast math, as the columns of `quantize_dual` do.

    Returns:
        `nvfp4.Steps` (G, S, D, B, p, s, e, codes, ...) or `mxfp8.Steps` (A, s, e, codes).

    Raises:
        TypeError, ValueError: as `quantize`.
    """
    return _steps(x, spec, axis, amax, key, origin, spec.math)[0]


def _steps(x, spec: QuantSpec, axis: int, given, key, origin, math: str) -> tuple[Steps, np.ndarray | None]:
    """The steps of arguments yet to be checked, and the amax."""
    arguments.widened(x)
    arguments.not_grouped(spec)
    arguments.whole_blocks(x.shape, spec, axis)
    arguments.rounding(spec, key, origin)
    g = _resolved_amax(x, spec, given)
    of_blocks = None if g is None else nvfp4.per_block(g, x.ndim)
    return make_steps(x, of_blocks, spec, axis, key, origin, math=math), g


def _stored(steps: Steps, spec: QuantSpec, axis: int, g: np.ndarray | None) -> Quantized:
    scales = swizzle_scales(steps.s) if spec.scale_layout == "swizzled" else steps.s
    return Quantized(packed(steps, spec), scales, g, spec, axis)


def quantize(
    x: np.ndarray,
    spec: QuantSpec = NVFP4,
    *,
    axis: int = -1,
    amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
) -> Quantized:
    """Quantizes x in blocks along `axis`, or in 16x16 tiles (sections 2 to 6 and 8).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        spec: how.
        axis: -1, or -2 for the transposed operand whose blocks run along the rows of x.
        amax: float32 of the shape that `amax(x, scope=spec.scope, rht=spec.rht)` has, or one for all; None computes it.
        key: two uint32 words, (2,) or (..., 2), for stochastic rounding; None rounds to nearest.
        origin: uint32 (3,), batch index, row and column at which x starts in the global operand (section 6).

    Returns:
        Codes, scales and the amax that was used.

    Raises:
        TypeError: x, amax or key has an unsupported dtype.
        ValueError: a shape, the axis, or a combination the contract does not define.
    """
    arguments.exact(spec)
    steps, g = _steps(x, spec, axis, amax, key, origin, "exact")
    return _stored(steps, spec, axis, g)


def quantize_dual(
    x: np.ndarray,
    spec: QuantSpec = NVFP4,
    *,
    col_spec: QuantSpec | None = None,
    amax: ArrayLike | None = None,
    col_amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
) -> tuple[Quantized, Quantized]:
    """Quantizes x along both axes: `quantize(x, spec)` and `quantize(x, col_spec, axis=-2)`.

    Only here `col_spec` may ask for a Hadamard transform with fast math, which then holds for both (section 7).

    Args:
        x: (..., M, K).
        spec: of the row result, and of the column result unless `col_spec` is given.
        col_spec: of the column result.
        amax, col_amax: as in `quantize`. `col_amax` is `amax` where both results have the same scope and no transform.
        key, origin: as in `quantize`, for both; their random streams differ.

    Returns:
        The rowwise and the columnwise operand. With 16x16 blocks element (i, j) of x has the same code in both.

    Raises:
        TypeError, ValueError: as `quantize`. FileNotFoundError: fast math without its table.
    """
    col_spec = spec if col_spec is None else col_spec
    if col_amax is None and col_spec.rht is None and col_spec.scope == spec.scope:
        col_amax = amax
    arguments.same_math(spec, col_spec)
    row, row_amax = _steps(x, spec, -1, amax, key, origin, col_spec.math)
    column, column_amax = _steps(x, col_spec, -2, col_amax, key, origin, col_spec.math)
    return _stored(row, spec, -1, row_amax), _stored(column, col_spec, -2, column_amax)


def linear_scales(t: Quantized) -> np.ndarray:
    """The scales of `t` as (..., R, C/block)."""
    arguments.quantized(t)
    if t.spec.scale_layout == "linear":
        return t.scales
    *batch, rows, columns = t.stored_shape
    shape = (*batch, *t.spec.facts.scale_shape(rows, columns, "linear"))
    if t.axis == -2 and t.group_sizes is not None:
        return unswizzle_group_scales(t.scales, shape, t.group_sizes // t.spec.facts.block)
    return unswizzle_scales(t.scales, shape)


@np.errstate(all="ignore")
def dequantize(t: Quantized, dtype: DTypeLike = "bfloat16") -> np.ndarray:
    """The values of a quantized operand (section 2.7, and 8).

    Args:
        t: what `quantize` returned. One that was quantized with a Hadamard transform stays transformed.
        dtype: bfloat16, float16 or float32.

    Returns:
        `t.shape` of `dtype`, rounded once from float32; NaN is canonical.

    Raises:
        TypeError: `dtype` or the dtype of a part is not supported.
        ValueError: the shapes do not belong together.
    """
    dtype = arguments.float_dtype(dtype)
    scales = linear_scales(t)
    if t.amax is None:
        y = mxfp8.values(t.codes, scales, t.spec.facts.block)
    else:
        if t.group_sizes is None:
            g = nvfp4.per_block(t.amax, t.codes.ndim)
        else:
            g = Groups(t.group_sizes, t.shape[-2]).amax_of_blocks(t.amax, t.axis, t.spec.facts.block)
        f = nvfp4.block_factor(scales, g, t.spec.emax)
        y = e2m1.decode(e2m1.unpack(t.codes)) * nvfp4.per_element(f)
    y = nvfp4.canonical(y).astype(dtype)
    return y if t.axis == -1 else np.swapaxes(y, -1, -2)


@np.errstate(all="ignore")
def decode(t: Quantized) -> np.ndarray:
    """Code times block scale, without the tensor scale (section 2.8).

    Args:
        t: what `quantize` returned.

    Returns:
        bfloat16 (..., R, C), as the operand is laid out; exact for NVFP4, and for MXFP8 above 2^-126. NaN is canonical.

    Raises:
        TypeError, ValueError: as `dequantize`.
    """
    scales = linear_scales(t)
    if t.amax is None:
        y = mxfp8.values(t.codes, scales, t.spec.facts.block)
    else:
        y = e2m1.decode(e2m1.unpack(t.codes)) * nvfp4.per_element(e4m3.decode(scales))
    return nvfp4.canonical(y).astype(arguments.float_dtype("bfloat16"))


def qdq(x: np.ndarray, spec: QuantSpec = NVFP4, *, amax: ArrayLike | None = None) -> np.ndarray:
    """dequantize(quantize(x)) along the last axis, in the dtype of x (section 2.7).

    Args:
        x: (..., M, K) bfloat16, float16 or float32.
        spec: how; the scale layout does not matter.
        amax: as for `quantize`.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        TypeError, ValueError: as `quantize`.
    """
    return dequantize(quantize(x, spec, amax=amax), x.dtype)
