"""`jax_nvfp4.dot` as the `dot_general` of Flax layers: `jax_nvfp4.flax.nnx` and `jax_nvfp4.flax.linen`.

This file holds what both share and needs no Flax.
"""

from __future__ import annotations

from functools import partial
from importlib import metadata

import jax

from jax_nvfp4.products.dot import dot
from jax_nvfp4.sharding import explicit_sharding, merged
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe


def dot_general(
    lhs,
    rhs,
    dimension_numbers,
    precision=None,
    preferred_element_type=None,
    *,
    out_sharding=None,
    recipe: Recipe = NVFP4_TRAINING,
    key=None,
) -> jax.Array:
    """`jax.lax.dot_general` of activations and a kernel, quantized as `recipe` says.

    Args:
        lhs: (..., in), bfloat16, float16 or float32: the activations. `in` may be several axes.
        rhs: (in, out), the dtype of `lhs`: the kernel. `out` may be several axes. The sizes of `in` and of `out`,
            multiplied out, must be multiples of 16.
        dimension_numbers: what dense layers use: the last axes of `lhs` contracted with the first axes of `rhs`, in
            order, and no batch axes.
        precision: accepted because layers pass it, and without effect: the operands are NVFP4 and accumulation is
            in float32 at any precision.
        preferred_element_type: the result is cast to it. None means the dtype of `lhs`.
        out_sharding: the sharding of the result on a mesh with Explicit axes, as in `jax.lax.dot_general`.
        recipe: which operands are quantized, and how.
        key: a JAX random key makes the rounding of gradients stochastic; None rounds to nearest.

    Returns:
        (..., out).

    Raises:
        ValueError: other dimension numbers, or shapes that `jax_nvfp4.dot` refuses.
        TypeError: dtypes that `jax_nvfp4.dot` refuses.
    """
    (lhs_axes, rhs_axes), (lhs_batch, rhs_batch) = dimension_numbers
    n = len(rhs_axes)
    is_dense = tuple(lhs_axes) == tuple(range(lhs.ndim - n, lhs.ndim)) and tuple(rhs_axes) == tuple(range(n)) and n > 0
    if not is_dense or len(lhs_batch) > 0 or len(rhs_batch) > 0:
        raise ValueError(
            "the NVFP4 dot_general contracts the last axes of lhs with the first axes of rhs, without batch axes, for "
            f"these ranks for example ((({lhs.ndim - 1},), (0,)), ((), ())), got {dimension_numbers} for shapes "
            f"{lhs.shape} and {rhs.shape}: transpose the operands, or keep jax.lax.dot_general for this layer"
        )
    if lhs.shape[lhs.ndim - n :] != rhs.shape[:n]:
        raise ValueError(f"the contracted axes of lhs {lhs.shape} and rhs {rhs.shape} differ in size")
    product = partial(jax.lax.dot_general, dimension_numbers=dimension_numbers, out_sharding=out_sharding)
    y = jax.eval_shape(product, lhs, rhs)  # its type: on a mesh with Explicit axes its sharding too
    tokens = [1] * (lhs.ndim - n)
    x = _one_axis(lhs, [*tokens, n])
    w = _one_axis(rhs, [n, rhs.ndim - n]).T
    _, sharding = merged(y, [*tokens, rhs.ndim - n])
    result = jax.lax.reshape(dot(x, w, recipe, key, out_sharding=sharding), y.shape, out_sharding=explicit_sharding(y))
    return result if preferred_element_type is None else result.astype(preferred_element_type)


def _one_axis(array, counts: list[int]) -> jax.Array:
    shape, sharding = merged(array, counts)
    return jax.lax.reshape(array, shape, out_sharding=sharding)


def without_flax(module: str, error: Exception) -> ImportError:
    """What to raise where `module` needs Flax and importing that gave `error`."""
    found = [f"{d.name} {d.version}" for d in metadata.distributions(name="flax")]
    reason = f"{found[0]} does not import with JAX {jax.__version__} ({error})" if found else "it is not installed"
    return ImportError(f"{module} needs Flax, and {reason}. Fix: pip install --upgrade 'jax_nvfp4[flax]'")
