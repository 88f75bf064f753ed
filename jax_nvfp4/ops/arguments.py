"""Checks that every operation makes of its arguments, before anything is traced into a program."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_nvfp4.formats import BLOCK, FLOAT_DTYPES
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
    if not isinstance(axis, int):
        raise TypeError(f"axis must be an int, got {axis!r}")
    from_end = axis if axis < 0 else axis - ndim
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
    for a in (-2, -1) if spec.is_tile else (axis,):
        if x.shape[a] % BLOCK != 0:
            raise ValueError(
                f"axis {a} of {name} has size {x.shape[a]}, which is not a multiple of the block size {BLOCK} "
                f"(shape {x.shape}): pad it, for example with "
                f"jax_nvfp4.pad_to_blocks({name}, axis={a}), and slice the result"
            )
    if spec.scope == "row" and axis != -1:
        raise ValueError(f"a spec with scope='row' quantizes along axis -1 only, got axis {axis}")


def given_amax(amax, x, spec: QuantSpec) -> jax.Array:
    """`amax` as the float32 array that belongs to `x`."""
    if isinstance(amax, int | float):
        amax = jnp.float32(amax)
    amax = jnp.asarray(amax)
    expected = x.shape[:-1] if spec.scope == "row" else x.shape[:-2]
    if amax.dtype != jnp.float32:
        raise TypeError(f"amax must be float32, got {amax.dtype}: use amax.astype(jnp.float32)")
    if amax.shape != expected:
        raise ValueError(
            f"amax must have shape {expected} (one per {'row' if spec.scope == 'row' else 'matrix'} of an operand of "
            f"shape {x.shape}), got {amax.shape}: jax_nvfp4.amax(x, scope={spec.scope!r}) computes it"
        )
    return amax


def key_words(key) -> jax.Array:
    """The two Philox key words (uint32) that a JAX random key stands for (section 6)."""
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == jnp.uint32 and key.ndim == 1
    if not (is_raw or is_typed and key.ndim == 0):
        given = f"{dtype} of shape {key.shape}" if dtype is not None else repr(key)
        raise TypeError(f"key must be one JAX random key such as jax.random.key(0), got {given}")
    return jax.random.bits(key, (2,), jnp.uint32)
