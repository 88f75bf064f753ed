"""`swizzle_scales` and `unswizzle_scales` against the oracle (docs/numerics.md section 9)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import QuantSpec, oracle
from jax_nvfp4.testing import assert_same_bytes, make

SHAPES = [(1, 1), (32, 4), (33, 3), (128, 4), (129, 5), (256, 10), (2, 3, 40, 9), (0, 4), (4, 0)]


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_oracle_and_returns(shape, dtype):
    scales = np.random.default_rng(0).integers(0, 256, shape, np.uint8).view(dtype)
    swizzled = jax.jit(jax_nvfp4.swizzle_scales)(scales)
    assert_same_bytes(swizzled, oracle.swizzle_scales(scales), "swizzled")
    assert_same_bytes(jax_nvfp4.unswizzle_scales(swizzled, shape[-2:]), scales, "back")


def test_known_offsets():
    for (row, column), offset in {
        (0, 0): 0,
        (1, 0): 16,
        (32, 0): 4,
        (127, 3): 511,
        (0, 4): 512,
        (128, 0): 1536,
        (200, 9): 2697,
    }.items():
        scales = np.zeros((256, 10), np.uint8)
        scales[row, column] = 1
        assert np.flatnonzero(jax_nvfp4.swizzle_scales(scales)).tolist() == [offset]


def test_vmap():
    scales = np.random.default_rng(0).integers(0, 256, (40, 3, 9), np.uint8)
    swizzled = jax.vmap(jax_nvfp4.swizzle_scales, in_axes=1)(scales)
    assert_same_bytes(swizzled, oracle.swizzle_scales(np.moveaxis(scales, 1, 0)), "swizzled")


def test_quantize_writes_the_same_swizzle():
    x = make("normal", (144, 80), "bfloat16")
    linear = jax_nvfp4.quantize(x).scales
    swizzled = jax_nvfp4.quantize(x, QuantSpec(scale_layout="swizzled")).scales
    assert_same_bytes(swizzled, jax_nvfp4.swizzle_scales(linear), "scales")
