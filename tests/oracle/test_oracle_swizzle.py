"""Section 9: where each scale byte goes."""

import numpy as np
import pytest

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.oracle import quantize, swizzle_scales, unswizzle_scales
from jax_nvfp4.spec import NVFP4, QuantSpec
from jax_nvfp4.testing import assert_same_bytes, make

SHAPES = [(1, 1), (33, 3), (128, 4), (129, 5), (201, 10), (256, 8), (0, 4), (5, 0)]


def offset(row, column, padded_columns):
    """The byte offset of section 9, one scale at a time."""
    tile = (row // 128) * (padded_columns // 4) + column // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def test_known_offsets():
    known = {(0, 0): 0, (1, 0): 16, (32, 0): 4, (127, 3): 511, (0, 4): 512, (128, 0): 1536, (200, 9): 2697}
    for (row, column), expected in known.items():
        scales = np.zeros((201, 10), np.uint8)
        scales[row, column] = 1
        assert np.flatnonzero(swizzle_scales(scales)).tolist() == [expected]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_goes_to_its_offset_and_padding_is_zero(shape):
    rows, columns = shape
    scales = np.random.default_rng(0).integers(1, 256, shape, np.uint8)
    swizzled = swizzle_scales(scales)
    assert swizzled.shape == NVFP4_FORMAT.scale_shape(rows, columns * 16, "swizzled")
    expected = np.zeros(swizzled.size, np.uint8)
    for row in range(rows):
        for column in range(columns):
            expected[offset(row, column, swizzled.shape[1])] = scales[row, column]
    assert_same_bytes(swizzled.reshape(-1), expected, "swizzled")
    assert_same_bytes(unswizzle_scales(swizzled, shape), scales, "unswizzled")


def test_batch_elements_are_swizzled_one_by_one():
    scales = np.random.default_rng(0).integers(1, 256, (2, 3, 40, 6), np.uint8)
    swizzled = swizzle_scales(scales)
    for i in np.ndindex(2, 3):
        assert_same_bytes(swizzled[i], swizzle_scales(scales[i]), f"element {i}")
    assert_same_bytes(unswizzle_scales(swizzled, scales.shape), scales, "unswizzled")


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("block", [(1, 16), (16, 16)])
def test_quantize_with_swizzled_scales(axis, block):
    x = make("block_spread", (2, 48, 80), "bfloat16")
    linear = quantize(x, QuantSpec(block=block), axis=axis)
    swizzled = quantize(x, QuantSpec(block=block, scale_layout="swizzled"), axis=axis)
    assert_same_bytes(swizzled.scales, swizzle_scales(linear.scales), "scales")
    assert_same_bytes(swizzled.codes, linear.codes, "codes")


def test_wrong_shapes_are_refused():
    swizzled = quantize(make("normal", (33, 48), "float32"), QuantSpec(scale_layout="swizzled")).scales
    with pytest.raises(ValueError, match=r"\(200, 3\) have the swizzled shape \(256, 4\), got \(128, 4\)"):
        unswizzle_scales(swizzled, (200, 3))
    with pytest.raises(ValueError, match="add the missing axis"):
        swizzle_scales(quantize(make("normal", (33, 48), "float32"), NVFP4).scales[0])
