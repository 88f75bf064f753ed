"""Straight-through qdq, operations without a derivative, scans over quantized layers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4_QAT, NVFP4_TRAINING
from jax_nvfp4.testing import CASES, Case, assert_same_bytes, make
from jax_nvfp4.testing.cases import DUAL


@pytest.mark.parametrize("spec", [case.spec for case in CASES if case.verb == "qdq"], ids=str)
@pytest.mark.parametrize("family", ["normal", "zeros", "block_spread", "nan_block"])
def test_qdq_is_straight_through(spec, family):
    x = jnp.asarray(make(family, (32, 64), "bfloat16"))
    y, pullback = jax.vjp(lambda x: jax_nvfp4.qdq(x, spec), x)
    dy = jnp.asarray(make("normal", (32, 64), "bfloat16", 1))
    assert_same_bytes(y, jax_nvfp4.qdq(x, spec), "value")
    assert_same_bytes(pullback(dy)[0], dy, "gradient")
    value, tangent = jax.jvp(lambda x: jax_nvfp4.qdq(x, spec), (x,), (dy,))
    assert_same_bytes(value, y, "value of the jvp")
    assert_same_bytes(tangent, dy, "tangent")


def test_grad_of_qdq_under_every_wrapping():
    x = jnp.asarray(make("normal", (3, 32, 64), "float32"))
    ones = np.ones(x.shape, np.float32)

    def total(x):
        return jax_nvfp4.qdq(x).sum()

    assert_same_bytes(jax.grad(total)(x), ones, "grad")
    assert_same_bytes(jax.jit(jax.grad(total))(x), ones, "jit(grad)")
    assert_same_bytes(jax.vmap(jax.grad(total))(x), ones, "vmap(grad)")
    assert_same_bytes(jax.grad(lambda x: jax.vmap(total)(x).sum())(x), ones, "grad(vmap)")
    assert_same_bytes(jax.grad(lambda x: jax.jit(total)(x))(x), ones, "grad(jit)")
    assert_same_bytes(jax.linearize(total, x)[1](x), x.sum(), "linearize")


def test_amax_is_a_constant():
    x = jnp.asarray(make("normal", (32, 64), "float32"))
    assert not jax.grad(lambda x: jax_nvfp4.amax(x))(x).any()
    gradient = jax.grad(lambda g: jax_nvfp4.qdq(x, amax=g).sum())(jnp.float32(4))
    assert gradient == 0


REFUSED = [case for case in CASES if case.verb in ("quantize", "dequantize", "decode")]
HOW = {
    "grad": lambda f, x: jax.grad(f)(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "jit(grad)": lambda f, x: jax.jit(jax.grad(f))(x),
    "vmap(grad)": lambda f, x: jax.vmap(jax.grad(f))(x[None]),
    "linearize": lambda f, x: jax.linearize(f, x),
}


@pytest.mark.parametrize(
    "case, how",
    [(case, "grad") for case in REFUSED] + [(Case("quantize", axes=DUAL), how) for how in HOW if how != "grad"],
    ids=lambda value: getattr(value, "name", value),
)
def test_quantized_results_have_no_derivative(case, how):
    """jax-ml/jax#18931: a cotangent that crosses an fp8 payload is cast to fp8, silently."""

    def f(x):  # of the scales, or of the numbers
        return case.call(*case.operands(x))[-1].astype(jnp.float32).sum()

    x = jnp.asarray(make("normal", (32, 64), "float32"))
    with pytest.raises(TypeError, match=r"jax_nvfp4\.dot .* jax_nvfp4\.qdq .*stop_gradient"):
        HOW[how](f, x)
    gradient = jax.grad(lambda x: f(jax.lax.stop_gradient(x)) * x.sum())(x)
    assert_same_bytes(gradient, np.full(x.shape, f(x)), "gradient beside a constant")


@pytest.mark.parametrize("restore", [jax_nvfp4.dequantize, jax_nvfp4.decode])
def test_block_scaled_as_a_differentiated_argument(restore):
    t = jax_nvfp4.quantize(make("normal", (32, 64), "float32"))
    with pytest.raises(TypeError, match=r"jax_nvfp4\.dot .* jax_nvfp4\.qdq"):
        jax.grad(lambda t: restore(t).astype(jnp.float32).sum(), allow_int=True)(t)
    with pytest.raises(TypeError):
        jax.grad(lambda t: restore(t).astype(jnp.float32).sum())(t)


@pytest.mark.parametrize("recipe, dtype", [(NVFP4_TRAINING, "bfloat16"), (NVFP4_QAT, "float32")])
def test_scan_over_layers(recipe, dtype, checking_leaks):
    """jax-ml/jax#27144, google/flax#4651: other dtypes in the backward pass, and tracers that leak."""
    x = jnp.asarray(make("normal", (24, 32), dtype))
    layers = jnp.asarray(make("normal", (4, 32, 32), dtype)) / 6
    keys = jax.random.split(jax.random.key(0), 4)

    def loss(layers, dot):
        def layer(x, layer):
            w, key = layer
            return jnp.tanh(dot(x, w, key=key)), None

        y, _ = jax.lax.scan(layer, x, (layers, keys))
        return y.astype(jnp.float32).sum()

    gradient_of = jax.grad(lambda layers: loss(layers, partial(jax_nvfp4.dot, recipe=recipe)))
    with checking_leaks():
        jax.eval_shape(gradient_of, layers)
    gradient = jax.jit(gradient_of)(layers)
    assert gradient.dtype == layers.dtype and gradient.shape == layers.shape
    exact = jax.jit(jax.grad(lambda layers: loss(layers, lambda x, w, key: x @ w.T)))(layers)
    for g, e in zip(np.asarray(gradient, np.float64), np.asarray(exact, np.float64), strict=True):
        assert np.linalg.norm(g - e) < 0.5 * np.linalg.norm(e)


def test_a_leak_is_noticed(checking_leaks):
    """What the scans above would say."""
    kept = []

    def f(x):
        kept.append(jax_nvfp4.qdq(x))
        return kept[0].sum()

    with pytest.raises(Exception, match="Leaked"), checking_leaks():
        jax.eval_shape(jax.grad(f), jnp.ones((16, 16), jnp.float32))
