"""The NVFP4 `dot_general` in Flax Linen layers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax")

from flax import linen as nn

import jax_nvfp4
from jax_nvfp4.flax.linen import DotGeneral


def gradients(layer, variables, x, rngs):
    """y, dx and dw of a layer."""

    def loss(variables, x):
        y = layer.apply(variables, x, rngs=rngs)
        return jnp.sum(jnp.sin(y).astype(jnp.float32)), y

    (_, y), (dvariables, dx) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(variables, x)
    return y, dx, dvariables["params"]["kernel"]


X = jax.random.normal(jax.random.key(2), (64, 48), jnp.bfloat16)
DENSE = nn.Dense(32, dtype=jnp.bfloat16, dot_general_cls=DotGeneral)
VARIABLES = DENSE.init(jax.random.key(0), X)


def same(a, b) -> bool:
    return bool(np.all(np.asarray(a) == np.asarray(b)))


def test_nearest_without_the_rng():
    kernel = VARIABLES["params"]["kernel"]

    def loss(kernel, x):
        return jnp.sum(jnp.sin(jax_nvfp4.dot(x, kernel.astype(x.dtype).T)).astype(jnp.float32))

    y, dx, dw = gradients(DENSE, VARIABLES, X, rngs=None)
    assert (y.dtype, dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    for value, expected in zip((dw, dx), jax.grad(loss, argnums=(0, 1))(kernel, X), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_stochastic_with_the_rng():
    nearest = gradients(DENSE, VARIABLES, X, rngs=None)
    one, again, two = (gradients(DENSE, VARIABLES, X, rngs={"sr": jax.random.key(k)}) for k in (1, 1, 2))
    for i, (n, a, b, c) in enumerate(zip(nearest, one, again, two, strict=True)):
        is_gradient = i > 0
        assert same(a, b)
        assert same(a, c) != is_gradient and same(a, n) != is_gradient


def test_instance_as_dot_general():
    instance = nn.Dense(32, dtype=jnp.bfloat16, dot_general=DotGeneral())
    np.testing.assert_array_equal(instance.apply(VARIABLES, X), DENSE.apply(VARIABLES, X))


def test_another_recipe():
    layer = nn.Dense(
        32, use_bias=False, dtype=jnp.bfloat16, dot_general_cls=partial(DotGeneral, recipe=jax_nvfp4.NVFP4_QAT)
    )
    kernel = VARIABLES["params"]["kernel"].astype(jnp.bfloat16)
    y = layer.apply({"params": {"kernel": VARIABLES["params"]["kernel"]}}, X)
    np.testing.assert_array_equal(y, jax_nvfp4.dot(X, kernel.T, jax_nvfp4.NVFP4_QAT))
    assert not same(y, DENSE.apply(VARIABLES, X))


def test_several_axes():
    layer = nn.DenseGeneral((2, 16), axis=(-2, -1), dtype=jnp.bfloat16, dot_general_cls=DotGeneral)
    kernel = VARIABLES["params"]["kernel"].reshape(3, 16, 2, 16)
    variables = {"params": {"kernel": kernel, "bias": jnp.zeros((2, 16))}}
    y = layer.apply(variables, X.reshape(64, 3, 16))
    np.testing.assert_array_equal(y.reshape(64, 32), DENSE.apply(VARIABLES, X))


def test_scan_over_layers(checking_leaks):
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return jnp.tanh(nn.Dense(48, use_bias=False, dtype=jnp.bfloat16, dot_general_cls=DotGeneral)(x)), None

    layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True, "sr": True}, length=4)()
    variables = layers.init(jax.random.key(0), X, None)

    @jax.jit
    def step(variables, key):
        def loss(variables):
            return jnp.mean(jnp.square(layers.apply(variables, X, None, rngs={"sr": key})[0]).astype(jnp.float32))

        return jax.value_and_grad(loss)(variables)

    with checking_leaks():
        value, grads = step(variables, jax.random.key(1))
    _, other = step(variables, jax.random.key(2))
    assert np.isfinite(value)
    for grad, different in zip(jax.tree.leaves(grads), jax.tree.leaves(other), strict=True):
        assert grad.dtype == jnp.float32 and np.all(np.isfinite(grad))
        assert not any(same(grad[i], different[i]) for i in range(4))
