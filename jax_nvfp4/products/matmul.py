"""The product of two operands that are quantized already."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_nvfp4.ops.dequantize import decode
from jax_nvfp4.tensor import BlockScaled


def block_scaled_matmul(a: BlockScaled, b: BlockScaled, dtype) -> jax.Array:
    """a bT of two quantized matrices (docs/numerics.md, matrix products).

    Codes times block scales are exact in bfloat16, so the product is a bfloat16 one with float32 accumulation; both
    tensor scales are applied once, to its result. The order of accumulation is the compiler's: compare by tolerance.

    Args:
        a: (R, C) with blocks along C and one amax.
        b: (S, C), likewise.
        dtype: of the result.

    Returns:
        (R, S).

    Raises:
        ValueError: blocks that do not run along the contracted axis.
    """
    for name, t in (("a", a), ("b", b)):
        if t.axis != -1 or t.spec.scope != "tensor":
            raise ValueError(
                f"{name} must have its blocks along the contracted last axis and one amax, got axis={t.axis}, "
                f"scope={t.spec.scope!r}: pass {name}.T, or quantize along the other axis"
            )
    left, right = decode(a), decode(b)
    product = jax.lax.dot_general(
        left, right, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32, out_sharding=_rows_of(left, right)
    )
    return (product * (tensor_scale(a) * tensor_scale(b))).astype(dtype)


def tensor_scale(t: BlockScaled) -> jax.Array:
    """What decoded values are multiplied by: amax / (6 * Emax), as one float32 product (section 2, step 7)."""
    return t.amax * jnp.float32(1 / (t.spec.facts.code_max * t.spec.emax))


def _rows_of(a, b) -> NamedSharding | None:
    """The sharding of a bT under Explicit axes, which a sharded contraction leaves open; None under others."""
    mesh = jax.typeof(a).sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return None
    return NamedSharding(mesh, PartitionSpec(jax.typeof(a).sharding.spec[0], jax.typeof(b).sharding.spec[0]))
