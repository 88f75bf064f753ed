"""Grouped operands: rows packed by group, each group with its own amax (docs/numerics.md section 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from jax_nvfp4.formats import NVFP4_FORMAT, SWIZZLE_ROWS, round_up
from jax_nvfp4.oracle import arguments, e4m3, e8m0, nvfp4
from jax_nvfp4.oracle.container import Quantized
from jax_nvfp4.oracle.groups import Groups
from jax_nvfp4.oracle.operations import make_steps, operand, packed
from jax_nvfp4.oracle.swizzle import swizzle_group_scales, swizzle_scales
from jax_nvfp4.spec import NVFP4, RHT, QuantSpec

Tail = Literal["zero", "unspecified"]


def rows_multiple(spec: QuantSpec, axis: int) -> int:
    """What the start and the size of every group must be a multiple of."""
    if axis == -1:
        return 1
    return SWIZZLE_ROWS if spec.scale_layout == "swizzled" else spec.facts.block


def grouped_amax(
    x: np.ndarray, group_sizes: ArrayLike, *, rht: RHT | None = None, dual: bool = False
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The largest magnitude of each group; 0 for an empty one.

    Args:
        x: (..., P, N) bfloat16, float16 or float32, groups of rows packed one after the other.
        group_sizes: (..., E) of any integer dtype; the sum is at most P.
        rht: that of the columnwise operand after this transform instead; groups are multiples of 16 rows.
        dual: both.

    Returns:
        float32 (..., E); with `dual` a pair, (row amax, column amax).

    Raises:
        TypeError: another dtype.
        ValueError: sizes that are negative, too many, or cut a block of the transform.
    """
    groups = _groups(x, group_sizes)
    groups.check(1 if rht is None else NVFP4_FORMAT.block)
    return _amax(x, groups, rht, dual)


def _amax(x: np.ndarray, groups: Groups, rht: RHT | None, dual: bool):
    row = _amax_of_groups(arguments.widened(x), groups)
    column = row
    if rht is not None:
        transformed = operand(x, QuantSpec(scope="group", rht=rht), -2)
        column = _amax_of_groups(np.swapaxes(transformed, -1, -2), groups)
    return (row, column) if dual else column


def _amax_of_groups(x: np.ndarray, groups: Groups) -> np.ndarray:
    """float32 x (..., P, N) -> (..., E)."""
    g = np.zeros(groups.sizes.shape, np.float32)
    for *batch, group in np.ndindex(g.shape):
        where = (*batch, group)
        g[where] = nvfp4.reduce_amax(x[(*batch, slice(groups.starts[where], groups.ends[where]))])
    return g


def grouped_quantize(
    x: np.ndarray,
    group_sizes: ArrayLike,
    spec: QuantSpec = NVFP4,
    *,
    axis: int = -1,
    amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
    tail: Tail = "zero",
) -> Quantized:
    """Quantizes packed groups of rows, each with its own amax.

    Args:
        x, group_sizes: as in `grouped_amax`. Groups of any size for axis -1; for axis -2 multiples of the block, of 128
            with swizzled scales, and so is P.
        spec: 1 x block blocks. Its scope is always the group.
        axis: -1 or -2.
        amax: float32 (..., E), or one for all; None computes it.
        key, origin: as in `quantize`; a group does not restart the random stream.
        tail: "zero" for rows past the last group whose codes and scales are 0 (MXFP8: scales only). Those that
            "unspecified" allows are the same here.

    Returns:
        An operand with scope "group": codes (..., P, N/2), or (..., N, P/2) for axis -2, where group g has the byte
        columns from its start / 2 on. Swizzled columnwise scales restart with every group (section 9).

    Raises:
        TypeError, ValueError: as `quantize` and `grouped_amax`.
    """
    spec = _grouped_spec(spec, tail)
    arguments.exact(spec)
    groups = _groups(x, group_sizes)
    groups.check(rows_multiple(spec, axis))
    return _quantize(x, groups, spec, axis, amax, key, origin, spec.math)


def grouped_quantize_dual(
    x: np.ndarray,
    group_sizes: ArrayLike,
    spec: QuantSpec = NVFP4,
    *,
    col_spec: QuantSpec | None = None,
    amax: ArrayLike | None = None,
    col_amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
    tail: Tail = "zero",
) -> tuple[Quantized, Quantized]:
    """Quantizes packed groups of rows along both axes.

    Args:
        x, group_sizes, amax, key, origin, tail: as in `grouped_quantize`.
        spec, col_spec, col_amax: as in `quantize_dual`.

    Returns:
        (row, column): `grouped_quantize(x, group_sizes, spec)` and `(..., col_spec, axis=-2)`.

    Raises:
        TypeError, ValueError: as `grouped_quantize`. FileNotFoundError: fast math without its table.
    """
    row_spec, column_spec = (_grouped_spec(s, tail) for s in (spec, spec if col_spec is None else col_spec))
    arguments.same_math(row_spec, column_spec)
    if col_amax is None and column_spec.rht is None:
        col_amax = amax
    groups = _groups(x, group_sizes)
    groups.check(rows_multiple(column_spec, -2))
    return (
        _quantize(x, groups, row_spec, -1, amax, key, origin, column_spec.math),
        _quantize(x, groups, column_spec, -2, col_amax, key, origin, column_spec.math),
    )


def _quantize(x, groups: Groups, spec: QuantSpec, axis: int, amax, key, origin, math: str) -> Quantized:
    """One direction; groups that violate what `axis` asks for are the caller's affair."""
    arguments.whole_blocks(x.shape, spec, axis)
    arguments.rounding(spec, key, origin)
    block = spec.facts.block
    g = of_blocks = None
    if amax is not None:
        g = arguments.given_amax(amax, x.shape, spec, groups.sizes.shape[-1])
    elif spec.facts.has_amax:
        g = _amax(x, groups, spec.rht, dual=False)
    if g is not None:
        of_blocks = groups.amax_of_blocks(g, axis, block)
    steps = make_steps(x, of_blocks, spec, axis, key, origin, math=math)

    capacity = np.broadcast_to(groups.capacity_of_blocks(axis, block), steps.s.shape)
    scales = np.where(capacity, np.uint8(0), steps.s.view(np.uint8)).view(steps.s.dtype)
    codes = steps.codes
    if spec.facts.has_amax:
        codes = np.where(np.repeat(capacity, block, axis=-1), np.uint8(0), codes)
    codes = packed(steps._replace(codes=codes), spec)
    return Quantized(codes, _laid_out(scales, groups, spec, axis), g, spec, axis, groups.sizes)


def _laid_out(scales: np.ndarray, groups: Groups, spec: QuantSpec, axis: int) -> np.ndarray:
    if spec.scale_layout == "linear":
        return scales
    return swizzle_scales(scales) if axis == -1 else swizzle_group_scales(scales, groups.sizes // spec.facts.block)


def poisoned_amax(
    x: np.ndarray, group_sizes: ArrayLike, *, rht: RHT | None = None, dual: bool = False
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """`grouped_amax` where nothing can raise, as on a GPU.

    Args:
        x, group_sizes, rht, dual: as in `grouped_amax`.

    Returns:
        As `grouped_amax`. The column amax is NaN for groups whose start or size is not a multiple of 16, and everything
        is NaN for sizes that are negative or too many.
    """
    groups = _groups(x, group_sizes)
    if groups.are_impossible:
        nan = np.full(groups.sizes.shape, np.nan, np.float32)
        return (nan, nan) if dual else nan
    row, column = _amax(x, groups, rht, dual=True)
    if rht is not None:
        column = np.where(groups.violate(NVFP4_FORMAT.block), np.float32("nan"), column)
    return (row, column) if dual else column


def poisoned_quantize(
    x: np.ndarray,
    group_sizes: ArrayLike,
    spec: QuantSpec = NVFP4,
    *,
    axis: int = -1,
    amax: ArrayLike | None = None,
    key: ArrayLike | None = None,
    origin: ArrayLike | None = None,
) -> tuple[Quantized, np.ndarray]:
    """`grouped_quantize` where nothing can raise, as on a GPU: violating groups poison their own results only.

    Args:
        x, group_sizes, spec, axis, key, origin: as in `grouped_quantize`. Here `spec` may ask for fast math.
        amax: likewise; None is `poisoned_amax`.

    Returns:
        The operand, and bool of the shape of its codes, False where they are unspecified. Scale bytes are NaN in the
        runs of violating groups, a run rounded up at its end (swizzle padding included), and everywhere for sizes that
        are negative or too many.

    Raises:
        TypeError, ValueError: what does not depend on the sizes, as `grouped_quantize`.
    """
    spec = _grouped_spec(spec, "zero")
    groups = _groups(x, group_sizes)
    block, multiple = spec.facts.block, rows_multiple(spec, axis)
    groups.check_rows(multiple)
    if amax is None and spec.facts.has_amax:
        amax = poisoned_amax(x, groups.sizes, rht=spec.rht)
    bad_rows = groups.violating_rows(multiple)
    q = _quantize(x, groups.rounded_up(multiple), spec, axis, amax, key, origin, spec.math)

    of_blocks = groups.along_blocks(bad_rows, axis, block)
    linear_shape = (*q.stored_shape[:-1], q.stored_shape[-1] // block)
    bad = np.broadcast_to(of_blocks, linear_shape)
    is_specified = ~np.repeat(bad, block // spec.facts.codes_per_byte, axis=-1)
    if spec.scale_layout == "swizzled":
        # A group starts at byte Rpad * (start / block), so each column of blocks owns Rpad bytes of its region.
        bad = np.full(q.scales.shape, groups.are_impossible)
        if axis == -2:
            bad = np.repeat(of_blocks[..., 0, :], q.scales.shape[-2], axis=-1).reshape(q.scales.shape)
    nan_byte = e8m0.NAN_BYTE if q.scales.dtype == e8m0.DTYPE else e4m3.NAN_BYTE
    scales = np.where(bad, nan_byte, q.scales.view(np.uint8)).view(q.scales.dtype)
    return replace(q, scales=scales, group_sizes=groups.sizes), is_specified


# Padding.


def pad_groups(
    x: np.ndarray, group_sizes: ArrayLike, multiple: int = NVFP4_FORMAT.block
) -> tuple[np.ndarray, np.ndarray]:
    """Packed groups with zero rows appended to each, up to a multiple.

    Args:
        x: (P, ...), groups of rows packed one after the other.
        group_sizes: (E,) of any integer dtype.
        multiple: what every size becomes a multiple of.

    Returns:
        The padded rows, P + E * (multiple - 1) rounded up to a multiple of them, whatever the sizes; and the new sizes,
        int32 (E,).

    Raises:
        TypeError, ValueError: as `grouped_amax`; ValueError for a multiple below 1.
    """
    old, new = _both(group_sizes, x.shape[0], multiple)
    padded = np.zeros((round_up(x.shape[0] + old.sizes.size * (multiple - 1), multiple), *x.shape[1:]), x.dtype)
    for source, target, size in zip(old.starts, new.starts, old.sizes, strict=True):
        padded[target : target + size] = x[source : source + size]
    return padded, new.sizes.astype(np.int32)


def unpad_groups(
    padded: np.ndarray, group_sizes: ArrayLike, rows: int, multiple: int = NVFP4_FORMAT.block
) -> np.ndarray:
    """The inverse of `pad_groups`: the rows of the groups packed again, capacity rows zero.

    Args:
        padded: (P', ...), the rows that `pad_groups(x, group_sizes, multiple)` returned.
        group_sizes: (E,), the sizes before padding.
        rows: P, how many rows to return.
        multiple: as given to `pad_groups`.

    Returns:
        (rows, ...).

    Raises:
        TypeError, ValueError: as `pad_groups`.
    """
    old, new = _both(group_sizes, rows, multiple)
    x = np.zeros((rows, *padded.shape[1:]), padded.dtype)
    for source, target, size in zip(new.starts, old.starts, old.sizes, strict=True):
        x[target : target + size] = padded[source : source + size]
    return x


def _both(group_sizes: ArrayLike, rows: int, multiple: int) -> tuple[Groups, Groups]:
    """Groups before and after padding."""
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}")
    old = Groups(group_sizes, rows)
    old.check(1)
    new_sizes = round_up(old.sizes, multiple)
    return old, Groups(new_sizes, int(new_sizes.sum()))


def _groups(x: np.ndarray, group_sizes: ArrayLike) -> Groups:
    arguments.widened(x)
    groups = Groups(group_sizes, x.shape[-2])
    if groups.sizes.shape[:-1] != x.shape[:-2]:
        raise ValueError(f"group_sizes must be (..., E) beside x {x.shape}, got shape {groups.sizes.shape}")
    return groups


def _grouped_spec(spec: QuantSpec, tail: Tail) -> QuantSpec:
    if tail not in get_args(Tail):
        raise ValueError(f"tail must be one of {get_args(Tail)}, got {tail!r}")
    if spec.is_tile or spec.scope == "row":
        raise ValueError(f"groups have 1 x block blocks and an amax each, got block {spec.block}, scope {spec.scope!r}")
    return replace(spec, scope="group")
