"""Products of packed groups of rows with a matrix per group, as the experts of a mixture need them.

Two forms, by where the groups lie:

| form | a | b | result |
|---|---|---|---|
| rows | (P, K), the rows grouped | (E, N, K) | (P, N): the rows of group g times b[g] transposed |
| contraction | (N, P), the columns grouped | (K, P), likewise | (E, N, K): group g of a times that of b transposed |

They are written for every device in terms of E dense products, so their time grows with the number of groups.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_nvfp4.ops import arguments
from jax_nvfp4.ops.dequantize import decode
from jax_nvfp4.products.matmul import alpha
from jax_nvfp4.spec import MXFP8
from jax_nvfp4.tensor import BlockScaled


def grouped_matmul(a, b, group_sizes, dtype=None) -> jax.Array:
    """a[g] b[g]T for every group, of arrays or quantized operands.

    Accumulation is in float32; the two tensor scales of quantized operands are applied to the result. Nothing in one
    group, NaN included, reaches another.

    Args:
        a: (P, K) with its rows grouped and b (E, N, K); or (N, P) and b (K, P) with their columns grouped. An array,
            or a `BlockScaled` with its blocks along the last axis as it is given: `grouped_quantize` along axis -1 for
            grouped rows, its transpose `t.T` along axis -2 for grouped columns.
        b: likewise.
        group_sizes: (E,) of any integer dtype; what comes after the last group takes no part.
        dtype: of the result; that of `a` where it is None, which a quantized `a` must not leave open.

    Returns:
        (P, N), zero in the rows after the last group; or (E, N, K), zero for empty groups.

    Raises:
        TypeError: wrong dtypes, or no `dtype` with a quantized `a`.
        ValueError: shapes that do not fit.
    """
    a, b = (t if isinstance(t, BlockScaled) else jnp.asarray(t) for t in (a, b))
    if dtype is None:
        if isinstance(a, BlockScaled):
            raise TypeError(
                "the result of quantized operands has no dtype of its own: pass dtype, such as jnp.bfloat16"
            )
        dtype = a.dtype
    for name, t in (("a", a), ("b", b)):
        if isinstance(t, BlockScaled) and t.axis != -1:
            raise ValueError(
                f"{name} must have its blocks along the contracted last axis, got axis={t.axis}: pass {name}.T"
            )
    is_rows = b.ndim == 3
    if a.ndim != 2 or b.ndim not in (2, 3) or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"expected a (P, K) and b (E, N, K), or a (N, P) and b (K, P), got {a.shape} and {b.shape}")
    sizes = arguments.group_sizes(group_sizes, a)
    if is_rows and sizes.shape[0] != b.shape[0]:
        raise ValueError(f"b {b.shape} has {b.shape[0]} matrices, group_sizes {sizes.shape[0]} groups")
    values = [decode(t) if isinstance(t, BlockScaled) else t for t in (a, b)]
    scales = [(t.amax, t.spec) for t in (a, b) if isinstance(t, BlockScaled) and t.amax is not None]
    first, second = alpha(*(scales + [(jnp.float32(1), MXFP8)] * (2 - len(scales))))
    factors = jnp.broadcast_to(first, sizes.shape), jnp.broadcast_to(second, sizes.shape)
    product = _rows if is_rows else _contraction
    return product(values[0], values[1], sizes, factors).astype(dtype)


def _rows(a, b, sizes, factors):
    ends = jnp.cumsum(sizes)
    row = jnp.arange(a.shape[0])[:, None]

    def group(y, of_group):
        w, start, end, (first, second) = of_group
        product = jnp.einsum("pk,nk->pn", a, w, preferred_element_type=jnp.float32) * first * second
        return jnp.where((row >= start) & (row < end), product, y), None

    start = jnp.zeros((a.shape[0], b.shape[1]), jnp.float32)
    return jax.lax.scan(group, start, (b, ends - sizes, ends, factors))[0]


def _contraction(a, b, sizes, factors):
    ends = jnp.cumsum(sizes)
    column = jnp.arange(a.shape[1])

    def group(of_group):
        start, end, (first, second) = of_group
        inside = (column >= start) & (column < end)
        left, right = (jnp.where(inside, t, jnp.zeros((), t.dtype)) for t in (a, b))
        return jnp.einsum("np,kp->nk", left, right, preferred_element_type=jnp.float32) * first * second

    products = jax.lax.map(group, (ends - sizes, ends, factors))
    return jnp.where((sizes > 0)[:, None, None], products, 0)
