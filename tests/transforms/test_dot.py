"""`dot`: accuracy, keys, what it keeps for the backward pass, shapes (docs/numerics.md sections 8, 11 and 12)."""

import collections
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, RHT, Recipe, oracle
from jax_nvfp4.testing import assert_same_bytes, make, sqnr

DTYPES = ["bfloat16", "float16", "float32"]
NVFP4_RHT = dataclasses.replace(NVFP4, rht=RHT())
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
        (dw, restored(DY, spec=NVFP4_RHT, axis=-2, key=words).T @ restored(X, spec=NVFP4_RHT, axis=-2)),
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
    ((5, 0), (48, 0)),
    ((2, 3, 0), (48, 0)),
    ((0,), (48, 0)),
    ((5, 64), (0, 64)),
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
    tokens = x.reshape(int(np.prod(shape_x[:-1])), shape_x[-1])
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
    recipe = Recipe(x=NVFP4, w=NVFP4_2D, grad=NVFP4, rht=RHT())
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


def custom_calls(function, *operands):
    """How often each custom call of ours stands in the compiled program."""
    text = jax.jit(function).lower(*operands).compile().as_text()
    return collections.Counter(re.findall(r'custom_call_target="nvfp4_(\w+)"', text))


def equations(jaxpr):
    """All equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_inference_quantizes_rows_only():
    """The columnwise copies are for the backward pass: without one, rows are written and no random bits drawn."""

    def forward(x, w):
        return jax_nvfp4.dot(x, w, key=jax.random.key(0))

    traced = list(equations(jax.make_jaxpr(forward)(X, W).jaxpr))
    assert not any("random_bits" in equation.primitive.name for equation in traced)
    results = [e.outvars[0].aval.shape for e in traced if e.primitive.name == "nvfp4_quantize"]
    assert sorted(results) == sorted([(*X.shape[:1], X.shape[1] // 2), (*W.shape[:1], W.shape[1] // 2)])
    assert all(len(e.outvars) == 2 for e in traced if e.primitive.name == "nvfp4_quantize")
    assert custom_calls(forward, X, W) == {"amax": 2, "quantize": 2, "decode": 2}


def test_training_quantizes_each_operand_once_a_direction():
    calls = custom_calls(lambda *operands: products(*operands, key=jax.random.key(0)), X, W, DY)
    assert calls == {"amax": 5, "quantize": 5, "decode": 6}  # with the transform, x and dy have an amax each way
    recipe = dataclasses.replace(NVFP4_TRAINING, rht=None)
    calls = custom_calls(lambda *operands: products(*operands, recipe, jax.random.key(0)), X, W, DY)
    assert calls == {"amax": 3, "quantize": 5, "decode": 6}


def with_scale(x, w, dy):
    return [jnp.full((16, 16), value, jnp.float32) for value in (x, w, dy)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "x, w, dy",
    [
        (2.0**-51, 2.0**-51, 1),
        (2.0**-52, 2.0**-52, 1),
        (1, 1e-9, 1e-24),
        (1e-24, 1e-9, 1e-5),
        (1e30, 1e-30, 1),
        (1e-30, 1e30, 1e5),
        (7e35, 8e-36, 1),
        (1e-19, 1e-19, 1e-19),
        (1e18, 1e18, 1e18),
        (1e-33, 1e35, 1e-33),
    ],
)
def test_range(x, w, dy, jit):
    """Every product whose result is a normal number: alpha alone may be subnormal, which XLA:CPU takes for zero."""
    run = jax.jit(products) if jit else products
    for actual, (a, b) in zip(run(*with_scale(x, w, dy)), ((x, w), (dy, w), (dy, x)), strict=True):
        exact = 16 * float(np.float32(a)) * float(np.float32(b))
        if 2.0**-126 <= exact < 2.0**128:
            np.testing.assert_allclose(actual, np.full((16, 16), exact), rtol=1e-5)
        else:
            assert (np.asarray(actual) == (np.inf if exact > 1 else 0)).all()


def test_range_of_special_amaxes():
    for value in (np.nan, np.inf):
        x = X[:16, :32].copy()
        x[3, 5] = value
        y = np.asarray(jax_nvfp4.dot(x, W[:16, :32]))
        assert not np.isfinite(y).any()
    zero = np.zeros((16, 32), np.float32)
    assert not np.asarray(jax_nvfp4.dot(zero, W[:16, :32])).any()
    assert not np.asarray(jax_nvfp4.dot(np.full((16, 32), 3e38, np.float32), zero)).any()


def test_alpha_has_the_roundings_of_the_plain_product():
    """Where that is normal, splitting its exponent changes no bit of the result."""
    from jax_nvfp4.products.matmul import alpha, tensor_scale

    a, b = (jnp.asarray(np.exp2(make("uniform", (4096, 1), "float32", i))[:, 0]) for i in (0, 1))
    first, second = jax.jit(lambda a, b: alpha((a, NVFP4), (b, NVFP4)))(a, b)
    plain = jax.jit(lambda a, b: tensor_scale(a, NVFP4) * tensor_scale(b, NVFP4))
    assert_same_bytes(first * second, plain(a, b), "alpha")


def test_key_is_used_once():
    """KeyReuseError of the forward pass, which drew bits to look at a key, and of each second draw."""
    with jax.debug_key_reuse(True):
        for tokens in (32, 17):
            x, dy = X[:tokens], DY[:tokens]
            jax.block_until_ready(jax_nvfp4.dot(x, W, NVFP4_TRAINING, jax.random.key(0)))
            jax.block_until_ready(products(x, W, dy, key=jax.random.key(1)))
            jax.block_until_ready(jax.jit(lambda x, dy, key: products(x, W, dy, key=key))(x, dy, jax.random.key(2)))
        jax.block_until_ready(jax_nvfp4.quantize_dual(X, key=jax.random.key(3)))
        jax.block_until_ready(jax.jit(lambda x, key: jax_nvfp4.quantize_dual(x, key=key))(X, jax.random.key(4)))
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(lambda key: (jax.random.bits(key), products(X, W, DY, key=key)))(jax.random.key(5))


@pytest.mark.parametrize("tokens", [17, 32])
def test_both_directions_share_one_draw(tokens):
    """Two words a key, as docs/numerics.md section 6 says, also where the columnwise tokens are padded."""
    key = jax.random.key(4)
    words = np.asarray(jax.random.bits(key, (2,), np.uint32))
    x, dy = X[:tokens], DY[:tokens]
    _, dx, dw = products(x, W, dy, key=key)
    assert sqnr(dx, restored(dy, key=words) @ restored(W, spec=NVFP4_2D)) > 100
    pad = ((0, -tokens % 16), (0, 0))
    columns = restored(np.pad(dy, pad), spec=NVFP4_RHT, axis=-2, key=words).T @ restored(
        np.pad(x, pad), spec=NVFP4_RHT, axis=-2
    )
    assert sqnr(dw, columns) > 100


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
def test_without_jit(recipe):
    """`jax.disable_jit`, in which debuggers step through a model."""
    key = jax.random.key(0)
    expected = products(X[:20], W, DY[:20], recipe, key)
    with jax.disable_jit():
        actual = products(X[:20], W, DY[:20], recipe, key)
        t = jax_nvfp4.quantize(X, key=key)
        assert_same_bytes(jax_nvfp4.dequantize(jax_nvfp4.quantize(X)), jax_nvfp4.qdq(X).astype(jnp.bfloat16), "qdq")
        for both in (jax_nvfp4.quantize_dual(W, NVFP4_2D), jax_nvfp4.quantize_dual(X, key=key)):
            jax_nvfp4.block_scaled_matmul(both[0], both[0], jnp.float32)
        jax_nvfp4.decode(t), jax_nvfp4.amax(X)
        jax.vmap(lambda x: jax_nvfp4.quantize(x, axis=-2).codes)(jnp.stack([X, X]))
        assert_same_bytes(jax.grad(lambda x: jax_nvfp4.qdq(x).sum())(X), np.ones_like(X), "gradient of qdq")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5 * np.abs(e).max())


SECOND_ORDER = {
    "hessian": lambda f, x, w: jax.hessian(f)(x, w),
    "gradient of a gradient": lambda f, x, w: jax.grad(lambda x: (jax.grad(f)(x, w) ** 2).sum())(x),
    "of the other operand": lambda f, x, w: jax.grad(lambda w: (jax.grad(f)(x, w) ** 2).sum())(w),
    "jvp of a gradient": lambda f, x, w: jax.jvp(lambda x: jax.grad(f)(x, w), (x,), (x,)),
    "with respect to dy": lambda f, x, w: jax.grad(lambda s: jax.grad(lambda x: s * f(x, w))(x).sum())(2.0),
    "under jit and vmap": lambda f, x, w: jax.jit(jax.vmap(jax.grad(lambda x: (jax.grad(f)(x, w) ** 2).sum())))(
        jnp.stack([x, x])
    ),
    "rematerialized": lambda f, x, w: jax.grad(lambda x: (jax.grad(jax.checkpoint(f))(x, w) ** 2).sum())(x),
}


@pytest.mark.parametrize("how", SECOND_ORDER)
def test_no_second_derivative(how):
    """The error said to differentiate `dot`, which is what the user does."""
    with pytest.raises(TypeError, match=r"jax_nvfp4\.dot with a training recipe has no derivative of second order"):
        SECOND_ORDER[how](lambda x, w: jax_nvfp4.dot(x, w).sum(), jnp.asarray(X[:16, :16]), jnp.asarray(W[:16, :16]))


def test_second_derivative_of_qat():
    x, w = jnp.asarray(X[:4, :16]), jnp.asarray(W[:16, :16])
    second = jax.grad(lambda w: jax.grad(lambda x: (jax_nvfp4.dot(x, w, NVFP4_QAT) ** 2).sum())(x).sum())(w)
    assert np.isfinite(second).all() and np.asarray(second).any()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(x=NVFP4_2D, w=NVFP4_2D, grad=jax_nvfp4.NVFP4), r"x cannot have \(16, 16\) blocks.* Use x=NVFP4"),
        (dict(x=jax_nvfp4.NVFP4, w=NVFP4_2D, grad=NVFP4_2D), r"grad cannot have \(16, 16\) blocks.* Use grad=NVFP4"),
        (dict(x=None, w=None, grad=None), r"quantizes w at least, as NVFP4_QAT"),
        (dict(x=jax_nvfp4.NVFP4, w=None, grad=jax_nvfp4.NVFP4), r"quantizes w at least"),
        (dict(x=jax_nvfp4.NVFP4, w=NVFP4_2D, grad=None), r"both or neither"),
        (dict(x=jax_nvfp4.NVFP4, w=jax_nvfp4.NVFP4, grad=jax_nvfp4.NVFP4), r"NVFP4_2D"),
    ],
)
def test_recipes_are_checked_when_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**arguments)


def test_recipe_of_other_things():
    with pytest.raises(TypeError, match=r"w must be a QuantSpec.* 'nvfp4'"):
        Recipe(None, "nvfp4", None)


def test_quantized_operand():
    """An error that printed the arrays."""
    for operands in ((X, jax_nvfp4.quantize(W)), (jax_nvfp4.quantize(X), W)):
        with pytest.raises(TypeError, match="quantized already.*block_scaled_matmul") as error:
            jax_nvfp4.dot(*operands)
        assert len(str(error.value)) < 300


def test_sizes_that_blocks_do_not_divide():
    for recipe in (NVFP4_TRAINING, Recipe(None, NVFP4_2D, None)):
        with pytest.raises(ValueError, match=r"N = 40 of w \(40, 64\) is not a multiple of 16.*axis=-2"):
            jax_nvfp4.dot(X[:, :64], W[:40, :64], recipe)
    with pytest.raises(ValueError, match=r"K = 24 of w \(48, 24\).*axis=-1\) and x likewise"):
        jax_nvfp4.dot(X[:, :24], W[:48, :24], NVFP4_QAT)
    assert jax_nvfp4.dot(X[:, :64], W[:40, :64], NVFP4_QAT).shape == (256, 40)


def test_block_scaled_matmul_of_a_batch():
    """(1, 32, 64) by (1, 32, 64) gave (1, 64, 1, 64)."""
    a, b = make("normal", (3, 32, 64), "float32"), make("uniform", (3, 48, 64), "float32")
    y = jax_nvfp4.block_scaled_matmul(jax_nvfp4.quantize(a), jax_nvfp4.quantize(b), jnp.float32)
    assert y.shape == (3, 32, 48)
    for i in range(3):
        one = jax_nvfp4.block_scaled_matmul(jax_nvfp4.quantize(a[i]), jax_nvfp4.quantize(b[i]), jnp.float32)
        np.testing.assert_allclose(y[i], one, rtol=1e-5, atol=1e-5)


def test_block_scaled_matmul_of_nothing():
    a, b = np.zeros((5, 0), np.float32), np.zeros((32, 0), np.float32)
    y = jax_nvfp4.block_scaled_matmul(jax_nvfp4.quantize(a), jax_nvfp4.quantize(b), jnp.float32)
    assert_same_bytes(y, np.zeros((5, 32), np.float32), "product")


def test_block_scaled_matmul_refuses():
    a, b = jax_nvfp4.quantize(X), jax_nvfp4.quantize(W)
    with pytest.raises(TypeError, match=r"a must be a BlockScaled.*jax_nvfp4\.quantize\(a\)"):
        jax_nvfp4.block_scaled_matmul(X, b, jnp.float32)
    with pytest.raises(TypeError, match=r"b must be a BlockScaled.*jax_nvfp4\.dot"):
        jax_nvfp4.block_scaled_matmul(a, jnp.asarray(W), jnp.float32)
    with pytest.raises(TypeError, match="dtype must be one of bfloat16"):
        jax_nvfp4.block_scaled_matmul(a, b, jnp.int32)
    with pytest.raises(ValueError, match=r"got \(256, 384\) and \(3, 32, 64\): use jax.vmap"):
        jax_nvfp4.block_scaled_matmul(a, jax_nvfp4.quantize(make("normal", (3, 32, 64), "float32")), jnp.float32)
