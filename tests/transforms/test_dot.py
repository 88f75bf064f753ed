"""`dot`: accuracy, keys, what it keeps for the backward pass, shapes (docs/numerics.md sections 8, 11 and 12)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, Recipe, oracle
from jax_nvfp4.testing import assert_same_bytes, make, sqnr

DTYPES = ["bfloat16", "float16", "float32"]
X, W, DY = (make("normal", shape, "float32", seed) for seed, shape in enumerate([(256, 384), (128, 384), (256, 128)]))


def products(x, w, dy, recipe=NVFP4_TRAINING, key=None):
    y, pullback = jax.vjp(lambda x, w: jax_nvfp4.dot(x, w, recipe, key), x, w)
    return y, *pullback(jnp.asarray(dy, y.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keyed", [False, True], ids=["nearest", "stochastic"])
def test_accuracy(dtype, keyed):
    """The bars of section 12: y at least 15 dB, dx and dw at least 14 dB."""
    x, w, dy = (jnp.asarray(a, dtype) for a in (X, W, DY))
    y, dx, dw = products(x, w, dy, key=jax.random.key(0) if keyed else None)
    for value, operand in ((y, x), (dx, x), (dw, w)):
        assert value.dtype == operand.dtype
    exact = [np.asarray(a, np.float64) for a in (x, w, dy)]
    assert sqnr(y, exact[0] @ exact[1].T) >= 15
    assert sqnr(dx, exact[2] @ exact[1]) >= 14
    assert sqnr(dw, exact[2].T @ exact[0]) >= 14
    assert sqnr(y, exact[0] @ exact[1].T) < 25  # it is quantized at all


def restored(x, axis=-1, **options):
    spec = options.pop("spec", jax_nvfp4.NVFP4)
    q = oracle.quantize(np.asarray(x), spec, axis=axis, **options)
    return oracle.dequantize(q, "float32").astype(np.float64)


def test_products_of_the_restored_operands():
    """Section 11: which operand is quantized along which axis. Float64 products of what the oracle restores."""
    key = jax.random.key(4)
    words = np.asarray(jax.random.bits(key, (2,), np.uint32))
    y, dx, dw = products(X, W, DY, key=key)
    w = restored(W, spec=NVFP4_2D)
    for actual, expected in (
        (y, restored(X) @ w.T),
        (dx, restored(DY, key=words) @ w),
        (dw, restored(DY, axis=-2, key=words).T @ restored(X, axis=-2)),
    ):
        assert sqnr(actual, expected) > 100


def test_products_of_the_restored_operands_of_qat():
    with jax.default_matmul_precision("highest"):  # GPUs multiply float32 in TF32 otherwise
        y, dx, dw = products(X, W, DY, NVFP4_QAT)
    w = restored(W)
    for actual, expected in ((y, X @ w.T), (dx, DY @ w), (dw, DY.T.astype(np.float64) @ X)):
        assert sqnr(actual, expected) > 100


@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
def test_any_number_of_tokens(tokens):
    x, dy = X[:tokens], DY[:tokens]
    y, dx, dw = products(x, W, dy)
    assert y.shape == (tokens, 128) and dx.shape == x.shape and dw.shape == W.shape
    padded = [np.pad(a, ((0, -tokens % 16), (0, 0))) for a in (x, dy)]
    for part, whole, rows in zip((y, dx, dw), products(padded[0], W, padded[1]), (tokens, tokens, 128), strict=True):
        np.testing.assert_allclose(part, whole[:rows], rtol=1e-5, atol=1e-5 * np.abs(whole).max())


SHAPES = [
    ((64,), (48, 64)),
    ((1, 64), (16, 64)),
    ((5, 64), (48, 64)),
    ((2, 3, 64), (48, 64)),
    ((2, 1, 4, 32), (16, 32)),
    ((0, 64), (48, 64)),
    ((3, 0, 64), (48, 64)),
]


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
@pytest.mark.parametrize("shape_x, shape_w", SHAPES, ids=str)
def test_leading_axes(shape_x, shape_w, recipe):
    x, w = make("normal", (*shape_x[:-1], 1, shape_x[-1]), "bfloat16")[..., 0, :], make("normal", shape_w, "bfloat16")
    y, dx, dw = products(x, w, np.ones((*shape_x[:-1], shape_w[0])), recipe)
    assert (y.shape, dx.shape, dw.shape) == ((*shape_x[:-1], shape_w[0]), shape_x, shape_w)
    assert {a.dtype for a in (y, dx, dw)} == {jnp.dtype("bfloat16")}
    predicted = jax.eval_shape(lambda x, w: products(x, w, jnp.ones((*shape_x[:-1], shape_w[0])), recipe), x, w)
    assert [(a.shape, a.dtype) for a in predicted] == [(a.shape, a.dtype) for a in (y, dx, dw)]
    tokens = x.reshape(-1, shape_x[-1])
    if tokens.size:
        y2, dx2, dw2 = products(tokens, w, np.ones((len(tokens), shape_w[0])), recipe)
        for a, b in ((y.reshape(y2.shape), y2), (dx.reshape(dx2.shape), dx2), (dw, dw2)):
            np.testing.assert_allclose(*(np.asarray(v, np.float32) for v in (a, b)), rtol=1e-2, atol=1e-2)
    else:
        assert not np.asarray(dw, np.float32).any()


def test_keys():
    """NVIDIA/TransformerEngine#2270: stochastic rounding that silently became nearest."""
    key = jax.random.key(0)
    steps = [products(X, W, DY, key=k) for k in (key, key, jax.random.fold_in(key, 1), None)]
    for first, same, other, nearest in list(zip(*steps, strict=True))[1:]:
        assert_same_bytes(first, same, "the same key")
        assert (np.asarray(first) != np.asarray(other)).mean() > 0.9
        assert (np.asarray(first) != np.asarray(nearest)).mean() > 0.9
    for y in (step[0] for step in steps):
        assert_same_bytes(y, steps[0][0], "y is never stochastic")
    codes = [np.asarray(jax_nvfp4.quantize(DY, key=k).codes) for k in (key, jax.random.fold_in(key, 1))]
    nibbles = [np.stack([c & 15, c >> 4]) for c in codes]
    assert (nibbles[0] != nibbles[1]).mean() > 0.01


def test_stochastic_gradients_are_unbiased():
    """The mean over keys approaches the gradient of unrounded dy, which nearest rounding does not."""
    x, w = X[:16, :32], W[:16, :32]
    dy = np.full((16, 16), 1.2, np.float32)
    dy[:, 0] = 6.0
    keys = jax.random.split(jax.random.key(0), 512)
    mean = np.asarray(jax.vmap(lambda key: products(x, w, dy, key=key)[1])(keys)).mean(0)
    expected = dy.astype(np.float64) @ restored(w, spec=NVFP4_2D)
    nearest = products(x, w, dy)[1]
    assert sqnr(mean, expected) > sqnr(nearest, expected) + 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_in_high_precision_is_kept(dtype):
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    _, pullback = jax.vjp(jax.jit(lambda x, w: jax_nvfp4.dot(x, w, key=jax.random.key(0))), x, w)
    kept = [a for a in jax.tree.leaves(pullback) if hasattr(a, "dtype") and a.size > 4]
    assert {a.dtype.name for a in kept} == {"uint8", "float8_e4m3fn"}
    assert sum(a.nbytes for a in kept) == (X.size + W.size) * 9 // 16


@pytest.mark.parametrize("factor", [1e-6, 0.2, 1000])
def test_small_and_large_gradients(factor):
    """marin-community/marin#7665: a cotangent of 1e-6 that became 0 on its way through an 8-bit type."""
    x, w = jnp.asarray(X[:32, :64], jnp.bfloat16), jnp.asarray(W[:48, :64], jnp.bfloat16)

    def gradient(recipe, factor):
        return jax.grad(lambda w: (jax_nvfp4.dot(x, w, recipe).astype(jnp.float32) * factor).sum())(w)

    def product(w):
        return jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32).astype(x.dtype)

    exact = jax.grad(lambda w: (product(w).astype(jnp.float32) * factor).sum())(w)
    assert_same_bytes(gradient(NVFP4_QAT, factor), exact, "the gradient of the weight itself")
    quantized = np.asarray(gradient(NVFP4_TRAINING, factor), np.float32)
    assert np.isfinite(quantized).all() and quantized.any()
    assert sqnr(quantized, exact) > 14


def test_float16_range():
    """vllm-project/vllm#37135: float16 that overflows before its scale is applied."""
    x, w = np.full((16, 32), 65504, np.float16), np.full((16, 32), 2.0**-20, np.float16)
    y = jax_nvfp4.dot(x, w)
    np.testing.assert_allclose(y, np.float32(65504) * np.float32(2.0**-20) * 32, rtol=1e-3)


def test_zero_operands():
    y, dx, dw = products(X * 0, W, DY * 0)
    assert not y.any() and not dx.any() and not dw.any()


def test_recipe_of_your_own():
    recipe = Recipe(x=NVFP4_TRAINING.x, w=NVFP4_TRAINING.w, grad=NVFP4_TRAINING.grad)
    assert recipe == NVFP4_TRAINING and hash(recipe) == hash(NVFP4_TRAINING)
    with jax.default_matmul_precision("highest"):
        y = jax_nvfp4.dot(X, W, Recipe(None, NVFP4_2D, None))
    assert sqnr(y, X @ restored(W, spec=NVFP4_2D).T) > 100


def test_block_scaled_matmul():
    a, b = jax_nvfp4.quantize(X), jax_nvfp4.quantize(W)
    y = jax_nvfp4.block_scaled_matmul(a, b, jnp.float32)
    assert y.dtype == jnp.float32 and sqnr(y, restored(X) @ restored(W).T) > 100
    columns = jax_nvfp4.quantize(X.T, axis=-2)
    assert_same_bytes(jax_nvfp4.block_scaled_matmul(columns.T, b, jnp.float32), y, "columnwise, transposed")
