"""The product of two operands that are quantized already."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.ops.dequantize import decode
from jax_nvfp4.sharding import explicit_sharding
from jax_nvfp4.spec import QuantSpec
from jax_nvfp4.tensor import BlockScaled


def block_scaled_matmul(a: BlockScaled, b: BlockScaled, dtype) -> jax.Array:
    """a bT of two quantized operands (docs/numerics.md, matrix products).

    Codes times block scales are exact in bfloat16, so the product is a bfloat16 one with float32 accumulation; both
    tensor scales are applied once, to its result. The order of accumulation is the compiler's: compare by tolerance.

    Args:
        a: (..., R, C) with blocks along C and one amax a matrix.
        b: (..., S, C), likewise. Leading axes are batch, the same in both.
        dtype: of the result: bfloat16, float16 or float32.

    Returns:
        (..., R, S).

    Raises:
        TypeError: an operand that is not quantized, or another dtype.
        ValueError: shapes that do not fit, or blocks that do not run along the contracted axis.
    """
    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, BlockScaled):
            raise TypeError(
                f"{name} must be a BlockScaled, got {type(t).__name__}: quantize it first with "
                f"jax_nvfp4.quantize({name}), or multiply arrays with jax_nvfp4.dot"
            )
        if t.axis != -1 or t.spec.scope != "tensor":
            raise ValueError(
                f"{name} must have its blocks along the contracted last axis and one amax, got axis={t.axis}, "
                f"scope={t.spec.scope!r}: pass {name}.T, or quantize along the other axis"
            )
    if jnp.dtype(dtype).name not in FLOAT_DTYPES:
        raise TypeError(f"dtype must be one of {', '.join(FLOAT_DTYPES)}, got {jnp.dtype(dtype).name}")
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"expected a of shape (..., R, C) and b of shape (..., S, C) with the same leading axes and C, got "
            f"{a.shape} and {b.shape}: use jax.vmap where only one of them has a leading axis"
        )
    batch = tuple(range(a.ndim - 2))
    contracted = ((a.ndim - 1,), (b.ndim - 1,))
    out_sharding = None
    if (left := explicit_sharding(a.codes)) and (right := explicit_sharding(b.codes)):
        # A contraction over shards leaves the sharding of its result open: rows of a by rows of b.
        out_sharding = NamedSharding(left.mesh, PartitionSpec(*left.spec[:-1], right.spec[-2]))
    return scaled_product(a, b, a.amax, b.amax, (contracted, (batch, batch)), dtype, out_sharding)


def scaled_product(
    a: BlockScaled, b: BlockScaled, a_amax, b_amax, dimension_numbers, dtype, out_sharding: NamedSharding | None
) -> jax.Array:
    """A product of two quantized operands, as they are stored, in any dimensions.

    Args:
        a, b: the operands; their own amaxes are not read.
        a_amax, b_amax: float32, one for all or one for each batch element of the product.
        dimension_numbers: of `jax.lax.dot_general`.
        dtype: of the result.
        out_sharding: of the result, under Explicit axes.
    """
    product = jax.lax.dot_general(
        decode(a), decode(b), dimension_numbers, preferred_element_type=jnp.float32, out_sharding=out_sharding
    )
    if a_amax is None and b_amax is None:  # formats without a second level
        return product.astype(dtype)
    factors = alpha(*((jnp.float32(1) if g is None else g, t.spec) for t, g in ((a, a_amax), (b, b_amax))))
    first, second = (jnp.expand_dims(s, (-2, -1)) if s.ndim else s for s in factors)
    return (product * first * second).astype(dtype)


def tensor_scale(amax, spec: QuantSpec) -> jax.Array:
    """What decoded values are multiplied by: amax / (6 * Emax), as one float32 product (section 2, step 7)."""
    return amax * jnp.float32(1 / (spec.facts.code_max * spec.emax) if spec.facts.has_amax else 1)


def alpha(a: tuple[jax.Array, QuantSpec], b: tuple[jax.Array, QuantSpec]) -> tuple[jax.Array, jax.Array]:
    """tensor_scale(*a) * tensor_scale(*b) as two factors, to be multiplied by one after the other.

    Their product may leave the range of float32 where the result of the matrix product is well inside, and XLA's CPU
    code flushes what is below 2^-126. So the significands, whose product is between 2^-23 and 2^-20, are scaled by two
    halves of the exponent. A non-zero sum of products of codes and block scales lies between 2^-20 and 2^46, and both
    factors have the sign of the exponent, so that every intermediate lies between that sum and the result: it is
    normal where the result is. The roundings are those of the plain product, as powers of two are exact.
    """
    (a_part, a_exponent), (b_part, b_exponent) = _frexp(a[0]), _frexp(b[0])
    exponent = jnp.maximum(a_exponent + b_exponent, -250)  # every product is far below the smallest number there
    half = exponent >> 1
    scales = tensor_scale(a_part, a[1]) * tensor_scale(b_part, b[1])
    return scales * _exp2(half), _exp2(exponent - half)


def _frexp(x) -> tuple[jax.Array, jax.Array]:
    """`x` >= 0 as m * 2^e with 1 <= m < 2^23, by its bits: XLA's CPU arithmetic takes subnormal numbers for 0."""
    bits = jax.lax.bitcast_convert_type(jnp.asarray(x, jnp.float32), jnp.int32)
    field, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    normal = jax.lax.bitcast_convert_type(fraction | 0x3F800000, jnp.float32)
    is_subnormal, is_special = field == 0, field == 255
    significand = jnp.where(is_subnormal, fraction.astype(jnp.float32), jnp.where(is_special, x, normal))
    return significand, jnp.where(is_subnormal, -149, jnp.where(is_special, 0, field - 127))


def _exp2(n) -> jax.Array:
    """2^n for int32 n from -126 to 127."""
    return jax.lax.bitcast_convert_type((n + 127) << 23, jnp.float32)
