"""Checks that every operation makes of its arguments, before anything is traced into a program."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.spec import QuantSpec
from jax_nvfp4.tensor import BlockScaled, brief

_FLOATS = f"{', '.join(FLOAT_DTYPES[:-1])} or {FLOAT_DTYPES[-1]}"


def array(x, name: str = "x", what: str = f"an array of {_FLOATS}") -> jax.Array:
    """`x` as an array of any dtype."""
    if isinstance(x, BlockScaled):
        raise TypeError(f"{name} must be {what}, got a BlockScaled, which is quantized already: dequantize it first")
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be {what}, got {brief(x)}, of which jax.numpy.asarray makes none") from error


def matrix(x, name: str = "x") -> jax.Array:
    """`x` as an array of rank >= 2 in a dtype that can be quantized."""
    x = array(x, name)
    if x.dtype.name not in FLOAT_DTYPES:
        raise TypeError(f"{name} must be {_FLOATS}, got {x.dtype}: cast it")
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have rank >= 2, (..., M, K), got shape {x.shape}: add an axis, for example {name}[None]"
        )
    return x


def integer(value, name: str) -> int:
    """`value` as an int."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(value)}") from None


def block_axis(axis: int, ndim: int) -> int:
    """`axis` as -1 or -2."""
    index = integer(axis, "axis")
    from_end = index if index < 0 else index - ndim
    if from_end not in (-1, -2):
        raise ValueError(
            f"axis must be one of the last two of {ndim} axes, -1 or -2, got {axis}: "
            "leading axes are batch, so move the axis to quantize to the end with jnp.moveaxis"
        )
    return from_end


def float_dtype(dtype, name: str = "dtype") -> str:
    """The name of a dtype that can be quantized and dequantized to."""
    try:
        given = jnp.dtype(dtype).name if dtype is not None else None
    except TypeError:
        given = None
    if given not in FLOAT_DTYPES:
        raise TypeError(f"{name} must be {_FLOATS}, got {given or brief(dtype)}")
    return given


def quant_spec(spec, name: str = "spec") -> QuantSpec:
    """`spec`, if it is one."""
    if not isinstance(spec, QuantSpec):
        raise TypeError(f"{name} must be a QuantSpec such as jax_nvfp4.NVFP4, got {brief(spec)}")
    return spec


def block_scaled(t, name: str = "t") -> BlockScaled:
    """`t`, if it is one whose arrays fit together."""
    if not isinstance(t, BlockScaled):
        raise TypeError(
            f"{name} must be a BlockScaled, as jax_nvfp4.quantize returns it, got {type(t).__name__} ({brief(t)}): "
            "quantize it first"
        )
    t.check()
    return t


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


def group_sizes(given, x) -> jax.Array:
    """`given` as int32 (..., E) that belongs to `x` (..., P, N)."""
    sizes = array(given, "group_sizes", "an array of integers")
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise TypeError(f"group_sizes must be integers, got {sizes.dtype}")
    if sizes.ndim != x.ndim - 1 or sizes.shape[:-1] != x.shape[:-2]:
        raise ValueError(
            f"group_sizes must have shape {(*x.shape[:-2], 'E')}, the rows of each of E groups of an operand of shape "
            f"{x.shape}, got {sizes.shape}"
        )
    return sizes.astype(jnp.int32)


def given_amax(amax, x, spec: QuantSpec, name: str = "amax", groups: int = 0) -> jax.Array:
    """`amax` as the float32 array that belongs to `x`."""
    if not spec.facts.has_amax:
        raise ValueError(f"format {spec.format!r} has no amax, got {name}={brief(amax)}: leave it out")
    if isinstance(amax, int | float) and not isinstance(amax, bool):
        try:
            amax = np.float32(amax)
        except OverflowError:
            raise ValueError(f"{name} must be a float32, got the larger {brief(amax)}") from None
    if not isinstance(amax, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"{name} must be a number or a float32 array, got {brief(amax)}")
    if amax.dtype != jnp.float32:
        raise TypeError(f"{name} must be float32, got {amax.dtype}: use {name}.astype(jnp.float32)")
    if not isinstance(amax, jax.Array) and np.any(np.asarray(amax) < 0):
        raise ValueError(f"{name} is a largest magnitude, never negative, got {np.min(amax)}: use jax_nvfp4.amax(x)")
    expected = (*x.shape[:-2], *{"tensor": (), "row": x.shape[-2:-1], "group": (groups,)}[spec.scope])
    if amax.shape not in ((), expected):
        raise ValueError(
            f"{name} must have shape {expected} (one per {'matrix' if spec.scope == 'tensor' else spec.scope} of an "
            f"operand of shape {x.shape}) or be one for all, got {amax.shape}: {name}=None computes it"
        )
    # A copy: what is kept beside codes and scales must outlive the caller's array.
    copy = jnp.array(amax, copy=True)
    return jnp.broadcast_to(copy, expected) if copy.shape != expected else copy


def origin(given, blocks: Mapping[int, int]) -> tuple:
    """`given`, (batch, row, column), as one tuple of ints where all are known, else as (None, *its values).

    `blocks` says how long the blocks along axes -1 and -2 are: an origin is never inside a block. The values of a
    traced or a device array are not read, so not checked either.
    """
    given = (0, 0, 0) if given is None else given
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise ValueError(f"origin must be a tuple (batch, row, column), got {brief(given)}")
    values = []
    for i, (name, value) in enumerate(zip(("batch", "row", "column"), given, strict=True)):
        is_known = not isinstance(value, jax.Array)
        is_integer = not isinstance(value, bool) and jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.integer)
        if not is_integer or np.shape(value) != ():
            raise TypeError(f"origin counts elements, so its {name} must be an integer, got {brief(value)}")
        if is_known and value < 0:
            raise ValueError(f"origin is (batch, row, column) from the start of the array, got a {name} of {value}")
        block = blocks.get(i - 3, 1) if i else 1
        if is_known and value % block:
            raise ValueError(
                f"origin must not be inside a block: its {name} must be a multiple of {block}, got {value}"
            )
        values.append(int(value) % 2**32 if is_known else value)
    return (tuple(values),) if all(isinstance(v, int) for v in values) else (None, *values)


def check_key(key, name: str = "key") -> None:
    """Raise unless `key` is one JAX random key."""
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_raw = is_array and key.dtype == jnp.uint32 and key.ndim == 1
    if is_raw or is_typed and key.ndim == 0:
        return
    given = f"{key.dtype} of shape {key.shape}" if is_array else brief(key)
    if type(key).__module__.startswith("flax.nnx"):
        given = f"{type(key).__name__}: call it, which draws one"
    raise TypeError(f"{name} must be one JAX random key such as jax.random.key(0), got {given}")


def key_words(key) -> jax.Array:
    """The two Philox key words (uint32) that a JAX random key stands for (section 6)."""
    return jax.random.bits(key, (2,), jnp.uint32)
