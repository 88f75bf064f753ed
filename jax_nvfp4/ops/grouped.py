"""Groups of rows packed into one operand, as the experts of a mixture see their tokens (docs/numerics.md section 10).

Every operation takes the group sizes as an array on the device and is one call however many groups there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from jax_nvfp4.formats import NVFP4_FORMAT, round_up
from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.amax import reduced
from jax_nvfp4.ops.quantize import run, with_own_amax
from jax_nvfp4.spec import NVFP4, RHT, QuantSpec
from jax_nvfp4.tensor import BlockScaled

Tail = Literal["zero", "unspecified"]


def grouped_amax(x, group_sizes, *, rht: RHT | None = None, dual: bool = False):
    """The largest |x| of each group (docs/numerics.md section 10).

    Under a mesh a group that spans shards has one amax, as in `jax_nvfp4.amax`.

    Args:
        x: (P, N), bfloat16, float16 or float32: groups of rows, packed one after the other. More leading axes are
            batch.
        group_sizes: (E,) of any integer dtype, the rows of each group; they may be 0 and add up to at most P. The rows
            after them are capacity, which no result depends on.
        rht: the largest magnitude of the columnwise operand after this transform instead; groups are multiples of 16.
        dual: both, from one read of x.

    Returns:
        float32 (E,), 0 for an empty group; a pair (amax, column amax) if `dual`.

    Raises:
        TypeError: wrong dtype of `x` or `group_sizes`.
        ValueError: wrong shapes. Wrong sizes are an error on the CPU when the call runs; on a GPU the results of the
            groups concerned are NaN.
    """
    x = arguments.matrix(x)
    sizes = arguments.group_sizes(group_sizes, x)
    return reduced(x, (sizes,), "group", rht, dual)


def grouped_quantize(
    x, group_sizes, spec: QuantSpec = NVFP4, *, axis: int = -1, amax=None, key=None, origin=None, tail: Tail = "zero"
) -> BlockScaled:
    """Quantize packed groups of rows, each with its own amax (docs/numerics.md section 10).

    Args:
        x, group_sizes: as in `grouped_amax`. Rowwise (axis -1) groups may have any size; columnwise (axis -2) they are
            multiples of 16, of 128 with swizzled scales, and so is P: `pad_groups` brings them to one.
        spec: 1x16 blocks. Its amax scope is always the group.
        axis: -1 or -2.
        amax: float32 (E,) or one for all; computed from `x` when it is None.
        key, origin: as in `jax_nvfp4.quantize`; a group does not restart the random stream.
        tail: "zero" gives the rows after the last group codes and scales of zero, "unspecified" leaves them unwritten.

    Returns:
        A `BlockScaled` with scope "group": codes (P, N/2), or (N, P/2) for axis -2, where group g has the byte columns
        from its start / 2 on. Swizzled columnwise scales restart with every group.

    Raises:
        TypeError, ValueError: as `jax_nvfp4.quantize` and `grouped_amax`.
    """
    x = arguments.matrix(x)
    axis = arguments.block_axis(axis, x.ndim)
    spec = _grouped_spec(spec, axis, x)
    arguments.exact(spec)
    sizes = arguments.group_sizes(group_sizes, x)
    amaxes = {axis: _amax_of(x, sizes, spec, amax)}
    (t,) = run(x, {axis: spec}, amaxes, key, origin, groups=(sizes,), zero_tail=_zero_tail(tail))
    return t


def grouped_quantize_dual(
    x,
    group_sizes,
    spec: QuantSpec = NVFP4,
    *,
    col_spec: QuantSpec | None = None,
    amax=None,
    col_amax=None,
    key=None,
    origin=None,
    tail: Tail = "zero",
) -> tuple[BlockScaled, BlockScaled]:
    """Quantize packed groups of rows along both axes in one call.

    Args:
        x, group_sizes, amax, col_amax, key, origin, tail: as in `grouped_quantize`; groups as columnwise outputs need.
        spec, col_spec: as in `jax_nvfp4.quantize_dual`.

    Returns:
        (row, col): `grouped_quantize(x, group_sizes, spec, axis=-1)` and `(..., col_spec, axis=-2)`.

    Raises:
        TypeError, ValueError: as `grouped_quantize`.
    """
    x = arguments.matrix(x)
    col_spec = spec if col_spec is None else col_spec
    spec, col_spec = _grouped_spec(spec, -1, x), _grouped_spec(col_spec, -2, x, "col_spec")
    sizes = arguments.group_sizes(group_sizes, x)
    if amax is None and col_amax is None and col_spec.rht is not None:
        amax, col_amax = grouped_amax(x, sizes, rht=col_spec.rht, dual=True)
    amax = _amax_of(x, sizes, spec, amax)
    if col_amax is None and col_spec.rht is None:
        col_amax = amax
    else:
        col_amax = _amax_of(x, sizes, col_spec, col_amax, "col_amax")
    amaxes = {-1: amax, -2: col_amax}
    specs = {-1: spec, -2: col_spec}
    row, col = run(x, specs, amaxes, key, origin, groups=(sizes,), zero_tail=_zero_tail(tail))
    return row, with_own_amax(col)


def pad_groups(x, group_sizes, multiple: int = NVFP4_FORMAT.block) -> tuple[jax.Array, jax.Array]:
    """Packed groups with zero rows appended to each, up to a multiple.

    Args:
        x: (P, ...), groups of rows packed one after the other.
        group_sizes: (E,) of any integer dtype.
        multiple: what every size becomes a multiple of.

    Returns:
        (padded, padded_sizes): the rows, P plus up to `multiple` - 1 for each group, rounded up to a multiple, so that
        the shape does not depend on the sizes; and the new sizes. `unpad_groups` is the inverse.

    Raises:
        TypeError, ValueError: as `grouped_amax`.
    """
    x, sizes, padded_sizes = _paddable(x, group_sizes, multiple)
    rows = round_up(x.shape[0] + sizes.shape[0] * (multiple - 1), multiple)
    row = jnp.arange(rows, dtype=jnp.int32)
    source, is_filled = _moved(row, padded_sizes, sizes)
    gathered = (
        jnp.take(x, jnp.where(is_filled, source, 0), axis=0, mode="clip")
        if x.shape[0]
        else jnp.zeros_like(x, shape=(rows, *x.shape[1:]))
    )
    return jnp.where(is_filled.reshape(-1, *(1,) * (x.ndim - 1)), gathered, 0), padded_sizes


def unpad_groups(padded, group_sizes, rows: int, multiple: int = NVFP4_FORMAT.block) -> jax.Array:
    """The inverse of `pad_groups`: the rows of the groups packed again, capacity rows zero.

    Args:
        padded: (P', ...), as `pad_groups(x, group_sizes, multiple)` returns its rows.
        group_sizes: (E,), the sizes before padding.
        rows: P, how many rows to return.
        multiple: as given to `pad_groups`.

    Returns:
        (rows, ...).

    Raises:
        TypeError, ValueError: as `grouped_amax`.
    """
    padded, sizes, padded_sizes = _paddable(padded, group_sizes, multiple)
    source, is_filled = _moved(jnp.arange(rows, dtype=jnp.int32), sizes, padded_sizes)
    gathered = jnp.take(padded, jnp.where(is_filled, source, 0), axis=0, mode="clip")
    return jnp.where(is_filled.reshape(-1, *(1,) * (padded.ndim - 1)), gathered, 0)


def _paddable(x, group_sizes, multiple: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, sizes = jnp.asarray(x), jnp.asarray(group_sizes)
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise TypeError(f"group_sizes must be integers, got {sizes.dtype}")
    if x.ndim < 1 or sizes.ndim != 1:
        raise ValueError(f"expected x (P, ...) and group_sizes (E,), got {x.shape} and {sizes.shape}")
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"multiple must be a positive int, got {multiple!r}")
    sizes = sizes.astype(jnp.int32)
    return x, sizes, round_up(sizes, multiple)


def _moved(row: jax.Array, sizes: jax.Array, source_sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where each row of groups of `sizes` lies when they have `source_sizes`, and whether it exists there."""
    ends, source_ends = jnp.cumsum(sizes, dtype=jnp.int32), jnp.cumsum(source_sizes, dtype=jnp.int32)
    group = jnp.searchsorted(ends, row, side="right")
    is_inside = group < sizes.shape[0]
    group = jnp.minimum(group, max(sizes.shape[0] - 1, 0))
    if sizes.shape[0] == 0:
        return row, is_inside
    offset = row - (ends - sizes)[group]
    return (source_ends - source_sizes)[group] + offset, is_inside & (offset < source_sizes[group])


def _grouped_spec(spec, axis: int, x, name: str = "spec") -> QuantSpec:
    spec = arguments.quant_spec(spec, name)
    if spec.is_tile or spec.scope == "row":
        raise ValueError(f"groups have (1, 16) blocks and an amax each, got {name} {spec}: NVFP4 has them")
    arguments.whole_blocks(x, spec, axis)
    return replace(spec, scope="group")


def _amax_of(x, sizes: jax.Array, spec: QuantSpec, given, name: str = "amax") -> jax.Array | None:
    if given is None:
        return grouped_amax(x, sizes, rht=spec.rht) if spec.facts.has_amax else None
    return arguments.given_amax(given, x, spec, name, sizes.shape[-1])


def _zero_tail(tail: Tail) -> bool:
    if tail not in get_args(Tail):
        raise ValueError(f"tail must be one of {get_args(Tail)}, got {tail!r}")
    return tail == "zero"
