"""The shared data reaches what its names promise, and the byte comparison sees every bit."""

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.oracle import e2m1, quantize
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make, sqnr

SHAPES = [(33, 48), (16, 7), (3, 2, 32, 64), (0, 16), (16, 0)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shape_dtype_and_seed(family, dtype):
    for shape in SHAPES:
        x = make(family, shape, dtype, seed=3)
        assert x.shape == shape and x.dtype == dtype
        assert_same_bytes(make(family, shape, dtype, seed=3), x, "same seed")
    assert make(family, (33, 48), dtype).tobytes() != x.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_families_reach_their_special_values(dtype):
    x = {family: make(family, (64, 64), dtype).astype(np.float32) for family in FAMILIES}
    smallest_normal = float(ml_dtypes.finfo(dtype).smallest_normal)
    assert (quantize(x["block_spread"]).scales.view(np.uint8) == 0).any()
    assert set(np.signbit(x["zeros"]).reshape(-1)) == {True, False} and not x["zeros"].any()
    assert np.abs(x["outlier"]).max() > 1000 * np.median(np.abs(x["outlier"]))
    assert np.abs(x["dtype_max"]).max() == float(ml_dtypes.finfo(dtype).max)
    subnormal = x["float16_subnormal"] if dtype == "float16" else x["tiny"]
    assert ((subnormal != 0) & (np.abs(subnormal) < smallest_normal)).any()
    assert np.abs(x["tiny"]).max() < 7.9e-36
    assert dtype == "float16" or np.abs(x["huge"]).max() > 7.6e35
    assert np.isnan(x["nan_block"]).sum() == 1 and np.isinf(x["inf_block"]).sum() == 1
    assert np.isnan(x["nan_everywhere"]).all()
    assert not any(np.isinf(x[family]).any() for family in FAMILIES if family != "inf_block")


def test_ties_lie_on_every_midpoint_and_beside_it():
    x = make("ties", (256, 256), "float32")
    q = quantize(x)
    assert q.amax == 2688 and len(np.unique(q.scales.view(np.uint8))) == 126
    scaled = np.abs(x) / np.repeat(q.scales.astype(np.float32), NVFP4_FORMAT.block, axis=-1)
    for midpoint in e2m1.MIDPOINTS:
        assert (scaled == midpoint).sum() > 1000
        assert (np.abs(scaled / midpoint - 1) < 1e-6).sum() > (scaled == midpoint).sum() + 1000


def test_same_bytes_reports_the_first_difference():
    expected = np.zeros((4, 5), np.float32)
    actual = expected.copy()
    actual[1, 2] = -0.0
    actual[3, 3] = 1
    with pytest.raises(AssertionError, match=r"y: 2 of 20 .* first at \(1, 2\): 0x80000000 .* 0x00000000"):
        assert_same_bytes(actual, expected, "y")
    with pytest.raises(AssertionError, match="dtype float64, expected float32"):
        assert_same_bytes(expected.astype(np.float64), expected, "y")
    with pytest.raises(AssertionError, match=r"shape \(4, 5\), expected \(5, 4\)"):
        assert_same_bytes(expected, expected.T, "y")
    nan = np.full(3, np.nan, np.float32)
    assert_same_bytes(nan, nan.copy(), "nan")


def test_sqnr():
    expected = np.array([[3.0, -4.0]])
    assert sqnr(expected * 1.1, expected) == pytest.approx(20)
    assert sqnr(expected * 0, expected) == pytest.approx(0)
    assert sqnr(expected, expected * 1e-3) < -59  # the noise of an estimate that is far too large
