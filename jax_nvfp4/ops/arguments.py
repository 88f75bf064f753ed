"""Checks that every operation makes of its arguments, before anything is traced into a program."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.spec import QuantSpec


def matrix(x, name: str = "x") -> jax.Array:
    """`x` as an array of rank >= 2 in a dtype that can be quantized."""
    x = jnp.asarray(x)
    if x.dtype.name not in FLOAT_DTYPES:
        raise TypeError(f"{name} must be {', '.join(FLOAT_DTYPES[:-1])} or {FLOAT_DTYPES[-1]}, got {x.dtype}: cast it")
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have rank >= 2, (..., M, K), got shape {x.shape}: add an axis, for example {name}[None]"
        )
    return x


def block_axis(axis: int, ndim: int) -> int:
    """`axis` as -1 or -2."""
    try:
        index = operator.index(axis)
    except TypeError:
        index = None
    if index is None or isinstance(axis, bool):
        raise TypeError(f"axis must be an int, got {axis!r}")
    from_end = index if index < 0 else index - ndim
    if from_end not in (-1, -2):
        raise ValueError(
            f"axis must be one of the last two of {ndim} axes, -1 or -2, got {axis}: "
            "leading axes are batch, so move the axis to quantize to the end with jnp.moveaxis"
        )
    return from_end


def quant_spec(spec, name: str = "spec") -> QuantSpec:
    """`spec`, if it is one."""
    if not isinstance(spec, QuantSpec):
        raise TypeError(f"{name} must be a QuantSpec such as jax_nvfp4.NVFP4, got {spec!r}")
    return spec


def whole_blocks(x, spec: QuantSpec, axis: int, name: str = "x") -> None:
    """Raise unless the axes that blocks of `spec` cover hold whole blocks."""
    block = spec.facts.block
    for a in (-2, -1) if spec.is_tile else (axis,):
        if x.shape[a] % block != 0:
            raise ValueError(
                f"axis {a} of {name} has size {x.shape[a]}, which is not a multiple of the block size {block} "
                f"(shape {x.shape}): pad it, for example with "
                f"jax_nvfp4.pad_to_blocks({name}, axis={a}), and slice the result"
            )
    if spec.scope == "row" and axis != -1:
        raise ValueError(f"a spec with scope='row' quantizes along axis -1 only, got axis {axis}")
    if spec.rht is not None and axis != -2:
        raise ValueError(f"the Hadamard transform runs along axis -2 only (section 3), got axis {axis}: leave out rht")


def not_grouped(spec: QuantSpec) -> None:
    """Raise for a spec that only operands with groups have."""
    if spec.scope == "group":
        raise ValueError("scope='group' needs group sizes: use jax_nvfp4.grouped_quantize")


def exact(spec: QuantSpec) -> None:
    """Raise for fast math, which a call with one output does not have."""
    if spec.math == "fast":
        raise ValueError("fast math belongs to quantize_dual with a Hadamard transform (section 7): use math='exact'")


def amax_shape(shape: tuple, spec: QuantSpec, groups: int = 0) -> tuple:
    """The shape of the amax of an operand of `shape`, as it is laid out."""
    scopes = {"tensor": (), "row": shape[-2:-1], "group": (groups,)}[spec.scope]
    return (*shape[:-2], *scopes)


def group_sizes(given, x) -> jax.Array:
    """`given` as int32 (..., E) that belongs to `x` (..., P, N)."""
    sizes = jnp.asarray(given)
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise TypeError(f"group_sizes must be integers, got {sizes.dtype}")
    if sizes.ndim != x.ndim - 1 or sizes.shape[:-1] != x.shape[:-2]:
        raise ValueError(
            f"group_sizes must have shape {(*x.shape[:-2], 'E')}, the rows of each of E groups of an operand of shape "
            f"{x.shape}, got {sizes.shape}"
        )
    return sizes.astype(jnp.int32)


def given_amax(amax, x, spec: QuantSpec, groups: int = 0) -> jax.Array:
    """`amax` as the float32 array that belongs to `x`."""
    if not spec.facts.has_amax:
        raise ValueError(f"format {spec.format!r} has no amax, got one: leave it out")
    if isinstance(amax, bool) or not isinstance(amax, int | float) and not hasattr(amax, "dtype"):
        raise TypeError(f"amax must be a number or a float32 array, got {amax!r}")
    if isinstance(amax, int | float | np.ndarray | np.generic) and np.any(np.asarray(amax) < 0):
        raise ValueError(f"amax is a largest magnitude, never negative, got {amax!r}")
    if isinstance(amax, int | float):
        amax = np.float32(amax)
    if amax.dtype != jnp.float32:
        raise TypeError(f"amax must be float32, got {amax.dtype}: use amax.astype(jnp.float32)")
    expected = amax_shape(x.shape, spec, groups)
    if amax.shape not in ((), expected):
        raise ValueError(
            f"amax must have shape {expected} (one per {'matrix' if spec.scope == 'tensor' else spec.scope} of an "
            f"operand of shape {x.shape}) or be one for all, got {amax.shape}: amax=None computes it"
        )
    # A copy: what is kept beside codes and scales must outlive the caller's array.
    return jnp.broadcast_to(amax, expected) if amax.shape != expected else jnp.array(amax, copy=True)


def origin(given, blocks: Mapping[int, int]) -> tuple:
    """`given`, (batch, row, column), as one tuple of ints where all are known, else as (None, *its values).

    `blocks` says how long the blocks along axes -1 and -2 are: an origin is never inside a block.
    """
    given = (0, 0, 0) if given is None else given
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise ValueError(f"origin must be (batch, row, column), got {given!r}")
    values = []
    for i, value in enumerate(given):
        is_known = not isinstance(value, jax.Array)
        if is_known and not isinstance(value, int | np.integer) or jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(f"origin counts elements, so it must hold integers, got {given!r}")
        block = blocks.get(i - 3, 1) if i else 1
        if is_known and (value < 0 or value % block):
            raise ValueError(f"origin {given!r} starts inside a block: element {i} must be a multiple of {block}")
        values.append(int(value) if is_known else value)
    return (tuple(values),) if all(isinstance(v, int) for v in values) else (None, *values)


def check_key(key, name: str = "key") -> None:
    """Raise unless `key` is one JAX random key."""
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == jnp.uint32 and key.ndim == 1
    if not (is_raw or is_typed and key.ndim == 0):
        given = f"{dtype} of shape {key.shape}" if dtype is not None else repr(key)
        raise TypeError(f"{name} must be one JAX random key such as jax.random.key(0), got {given}")


def key_words(key) -> jax.Array:
    """The two Philox key words (uint32) that a JAX random key stands for (section 6)."""
    return jax.random.bits(key, (2,), jnp.uint32)
