"""Section 3: the Hadamard transform, its order, its signs, its rounding, and what it is allowed to go with."""

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import amax, intermediates, operations, quantize, quantize_dual, rht
from jax_nvfp4.spec import NVFP4, NVFP4_2D, RHT, FourOverSix, QuantSpec
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make

DTYPES = ["bfloat16", "float16", "float32"]
MASKS = [0, 0xD7E8, 0x2C95, 0xFFFF, 0x0001, 0x8000]
SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
SPEC = QuantSpec(rht=RHT())
KEY = (3, 4)


def hadamard():
    """The definition: element (r, c) is -1 to the number of common bits of r and c."""
    return np.array([[(-1) ** bin(r & c).count("1") for c in range(16)] for r in range(16)], np.float64)


def column(*values):
    """One block of 16 rows, one column."""
    return np.array(values, np.float32).reshape(16, 1)


def arrays(q):
    return q.codes, q.scales, q.amax


def test_default_signs():
    assert (rht.signed_quarters(RHT()) * 4).tolist() == SIGNS
    assert (rht.signed_quarters(RHT(0)) == 0.25).all()


def test_known_answer():
    y = rht.transform(column(*range(16)), RHT())
    assert y.tolist() == [
        [-14.5, -7.5, 6.5, -0.5, 6.5, -0.5, -14.5, 8.5, 7.5, 14.5, 0.5, 1.5, 0.5, -2.5, 9.5, -15.5],
    ]


def test_order_of_the_sums():
    """The order is stride 1 first: any other pairing first gives other numbers here."""
    v = np.zeros(16)
    v[[0, 8]], v[1], v[9] = 2.0**24, 1, -1
    y = rht.transform(column(*v), RHT(0))
    assert y.tolist() == [[2.0**23] * 8 + [0.25, -0.25] * 4]


def test_scaling_comes_first():
    """A sum of unscaled elements would overflow."""
    y = rht.transform(column(*[3e38] + [0] * 14 + [3e38]), RHT(0))
    assert np.isfinite(y).all()
    assert np.isinf(rht.transform(column(*[3e38] * 16), RHT(0))).any()


@pytest.mark.parametrize("mask", MASKS)
def test_it_is_the_matrix_product(mask):
    """Small integers, so that every order is exact; the signs belong to the elements before the product."""
    x = np.random.default_rng(mask).integers(-128, 128, (2, 48, 8)).astype(np.float32)
    signs = np.where(mask >> np.arange(16) & 1, -1.0, 1.0)
    blocks = np.swapaxes(x, -1, -2).reshape(2, 8, 3, 16).astype(np.float64)
    expected = (blocks * signs * 0.25) @ hadamard()
    assert_same_bytes(rht.transform(x, RHT(mask)), expected.reshape(2, 8, 48).astype(np.float32), "transform")


@pytest.mark.parametrize("mask", MASKS)
def test_twelve_binades_are_exact_in_every_order(mask):
    """bfloat16 blocks that span 12 binades: a float64 product has no rounding at all, and neither has the butterfly."""
    rng = np.random.default_rng(mask)
    exponent = rng.integers(0, 12, (160, 64)) + rng.integers(-30, 30, (10, 1, 64)).repeat(16, 1).reshape(160, 64)
    x = (np.ldexp(rng.uniform(1, 1.99, (160, 64)), exponent) * rng.choice([-1, 0, 1], (160, 64))).astype(
        ml_dtypes.bfloat16
    )
    signs = np.where(mask >> np.arange(16) & 1, -1.0, 1.0)
    exact = ((x.T.astype(np.float64).reshape(64, 10, 16) * signs * 0.25) @ hadamard()).reshape(64, 160)
    y = rht.transform(x.astype(np.float32), RHT(mask))
    assert (y == exact).all()
    wide = x.copy()
    wide[0], wide[8], wide[1], wide[9] = 2.0**24, 2.0**24, 1, -1
    wide_exact = ((wide.T.astype(np.float64).reshape(64, 10, 16) * signs * 0.25) @ hadamard()).reshape(64, 160)
    assert (rht.transform(wide.astype(np.float32), RHT(mask)) != wide_exact).any()


@pytest.mark.full
def test_every_sign_mask():
    x = np.random.default_rng(0).integers(-128, 128, (16, 1)).astype(np.float32)
    for mask in range(1 << 16):
        signs = np.where(mask >> np.arange(16) & 1, -0.25, 0.25)
        assert (rht.transform(x, RHT(mask))[0] == (x[:, 0] * signs) @ hadamard()).all(), mask


def test_it_is_orthogonal():
    """So a product over the transformed axis stays what it was, if both operands have the same signs."""
    a, b = (make("normal", (64, 8), "float32", seed) for seed in (1, 2))
    product = a.T.astype(np.float64) @ b
    np.testing.assert_allclose(rht.transform(a, RHT()) @ rht.transform(b, RHT()).T, product, atol=1e-4)
    assert np.abs(rht.transform(a, RHT()) @ rht.transform(b, RHT(0)).T - product).max() > 1
    once = rht.transform(a, RHT(0))
    np.testing.assert_allclose(rht.transform(np.ascontiguousarray(once.T), RHT(0)), a.T, atol=1e-6)


def test_signs_of_zero_results():
    """Mask 0x2C95, an all-zero block: -0 at index 13 only where a sum of equal negative zeros gives it."""
    y = rht.transform(column(*[0] * 16), RHT(0x2C95))
    assert not y.any() and np.flatnonzero(np.signbit(y[0])).tolist() == [13]


def test_infinities_and_nan():
    one = rht.transform(column(*[0] * 5 + [-np.inf] + [1] * 10), RHT())
    assert np.isinf(one).all()
    two = rht.transform(column(*[np.inf, np.inf] + [0] * 14), RHT(0))
    assert np.isnan(two).any() and np.isinf(two).any()
    x = make("normal", (32, 16), "bfloat16")
    x[20, 3] = np.nan
    row, col = amax(x, rht=RHT(), dual=True)
    assert row.view(np.uint32) == 0x7FC00000 and col.view(np.uint32) == 0x7FC00000
    inf = make("normal", (32, 16), "bfloat16")
    inf[20, 3] = np.inf
    assert amax(inf, rht=RHT()) == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_once_to_the_dtype_of_x(dtype):
    x = make("normal", (64, 48), dtype)
    y = rht.transform(x.astype(np.float32), SPEC.rht)
    rounded = operations.operand(x, SPEC, -2)
    assert_same_bytes(rounded, y.astype(dtype).astype(np.float32), "rounded")
    assert (rounded != y).any() == (dtype != "float32")
    row, col = amax(x, rht=SPEC.rht, dual=True)
    assert row == np.abs(x.astype(np.float32)).max() and col == np.abs(rounded).max() and row != col
    assert amax(x, rht=SPEC.rht) == col
    assert (amax(x, dual=True)[0], amax(x, dual=True)[1]) == (row, row)
    steps = intermediates(x, SPEC, axis=-2)
    assert_same_bytes(steps.v, rounded, "the operand of the quantize")


def test_float16_transform_overflows_to_infinity():
    x = np.full((16, 1), 60000, np.float16)
    assert amax(x, rht=RHT(0)) == np.inf and amax(x.astype(np.float32), rht=RHT(0)) == 240000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_columnwise_quantize_is_that_of_the_transform(family, dtype):
    x = make(family, (2, 32, 48), dtype)
    transformed = np.swapaxes(operations.operand(x, SPEC, -2).astype(dtype), -1, -2)
    for key in (None, KEY):
        expected = quantize(transformed, axis=-2, key=key)
        for part, whole in zip(arrays(quantize(x, SPEC, axis=-2, key=key)), arrays(expected), strict=True):
            assert_same_bytes(part, whole, f"key {key}")
    row, col = quantize_dual(x, col_spec=SPEC, key=KEY)
    for part, whole in zip(arrays(row), arrays(quantize(x, key=KEY)), strict=True):
        assert_same_bytes(part, whole, "rows have no transform")
    for part, whole in zip(arrays(col), arrays(quantize(x, SPEC, axis=-2, key=KEY)), strict=True):
        assert_same_bytes(part, whole, "columns")


def test_each_direction_has_its_own_amax():
    x = make("outlier", (64, 64), "bfloat16")
    row, col = quantize_dual(x, col_spec=SPEC)
    assert row.amax > col.amax
    given_row, given_col = quantize_dual(x, col_spec=SPEC, amax=2.0, col_amax=3.0)
    assert (given_row.amax, given_col.amax) == (2, 3)
    # An amax for the rows alone says nothing about the columns.
    assert quantize_dual(x, col_spec=SPEC, amax=2.0)[1].amax == col.amax


def test_empty_operands():
    for shape in ((0, 32), (32, 0), (3, 0, 16)):
        q = quantize(np.zeros(shape, np.float32), SPEC, axis=-2)
        assert q.shape == shape and not q.amax.any()


def test_what_is_refused():
    x = make("normal", (32, 32), "bfloat16")
    with pytest.raises(ValueError, match="runs along axis=-2 only"):
        quantize(x, SPEC)
    with pytest.raises(ValueError, match="runs along axis=-2 only"):
        quantize_dual(x, SPEC)
    with pytest.raises(ValueError, match="axis -2 of x must be a multiple of 16"):
        amax(x[:20], rht=RHT())
    with pytest.raises(ValueError, match=r"needs \(1, 16\) blocks"):
        QuantSpec(block=NVFP4_2D.block, rht=RHT())
    with pytest.raises(ValueError, match="no amax per row"):
        amax(x, scope="row", rht=RHT())
    with pytest.raises(ValueError, match="not defined with a Hadamard transform"):
        QuantSpec(rht=RHT(), four_over_six=FourOverSix())
    for mask in (-1, 1 << 16, 1.0):
        with pytest.raises(ValueError, match="sign_mask must be a 16-bit mask"):
            RHT(mask)
    with pytest.raises(ValueError, match="rht must be a jax_nvfp4.RHT or None"):
        QuantSpec(rht=0xD7E8)
    assert hash(SPEC) == hash(QuantSpec(rht=RHT(0xD7E8))) and SPEC != NVFP4
