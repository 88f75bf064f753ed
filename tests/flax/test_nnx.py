"""The NVFP4 `dot_general` in Flax NNX layers, and the dimension numbers it accepts."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax")

from flax import nnx

import jax_nvfp4
from jax_nvfp4.flax import dot_general
from jax_nvfp4.flax.nnx import DotGeneral
from jax_nvfp4.testing import sqnr

DENSE = (((1,), (0,)), ((), ()))


def normal(seed: int, *shape: int, dtype=jnp.bfloat16):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def linear(product, *, inputs=64, outputs=96, dtype=jnp.bfloat16, param_dtype=jnp.float32) -> nnx.Linear:
    """A layer whose weights depend on the shapes only."""
    return nnx.Linear(
        inputs, outputs, use_bias=False, dtype=dtype, param_dtype=param_dtype, dot_general=product, rngs=nnx.Rngs(0)
    )


def stochastic(seed=1, recipe=jax_nvfp4.NVFP4_TRAINING) -> DotGeneral:
    return DotGeneral(recipe, rngs=nnx.Rngs(sr=seed))


def gradients(layer, x, dy):
    """y, dx and dw of a layer."""

    def loss(layer, x):
        y = layer(x)
        return jnp.sum((y * dy).astype(jnp.float32)), y

    (_, y), (dlayer, dx) = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(layer, x)
    return y, dx, dlayer.kernel[...]


@pytest.mark.parametrize("product", [DotGeneral(), stochastic()], ids=["nearest", "stochastic"])
def test_close_to_bfloat16(product):
    x, dy = normal(2, 128, 64), normal(3, 128, 96)
    exact = gradients(linear(jax.lax.dot_general), x, dy)
    quantized = gradients(linear(product), x, dy)
    ratios = [sqnr(q, e) for q, e in zip(quantized, exact, strict=True)]
    assert all(r >= bar for r, bar in zip(ratios, (15, 14, 14), strict=True)), ratios
    assert max(ratios) < 30, "nothing was quantized"


@pytest.mark.parametrize("recipe", [jax_nvfp4.NVFP4_TRAINING, jax_nvfp4.NVFP4_QAT])
def test_layer_is_dot(recipe):
    x = normal(2, 2, 24, 64)
    layer = linear(DotGeneral(recipe))
    kernel = layer.kernel[...].astype(jnp.bfloat16)
    np.testing.assert_array_equal(layer(x), jax_nvfp4.dot(x, kernel.T, recipe))


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
def test_gradient_dtypes(param_dtype):
    _, dx, dw = gradients(linear(stochastic(), param_dtype=param_dtype), normal(2, 32, 64), normal(3, 32, 96))
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, param_dtype)


def test_steps_round_differently_and_a_seed_repeats_them():
    x, dy = normal(2, 64, 64), normal(3, 64, 96)
    layer, same, other = linear(stochastic(1)), linear(stochastic(1)), linear(stochastic(2))
    steps = [gradients(layer, x, dy) for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, steps, [gradients(same, x, dy) for _ in range(2)])
    for y, *grads in (steps[1], gradients(other, x, dy)):
        np.testing.assert_array_equal(y, steps[0][0])
        assert all(np.any(np.asarray(g) != np.asarray(first)) for g, first in zip(grads, steps[0][1:], strict=True))


def test_layers_draw_their_own_keys():
    rngs = nnx.Rngs(sr=0)
    one, two = DotGeneral(rngs=rngs), DotGeneral(rngs=rngs)
    keys = [jax.random.key_data(stream()) for stream in (one.rngs, two.rngs, one.rngs)]
    assert len({tuple(key.tolist()) for key in keys}) == 3
    assert rngs.sr.count[...] == 2  # one for each layer, whatever they draw


def test_eval_draws_no_key():
    layer, x, dy = linear(stochastic()), normal(2, 64, 64), normal(3, 64, 96)
    layer.eval()
    evaluated = gradients(layer, x, dy)
    assert layer.dot_general.rngs.count[...] == 0
    jax.tree.map(np.testing.assert_array_equal, evaluated, gradients(linear(DotGeneral()), x, dy))
    layer.train()
    assert np.any(np.asarray(gradients(layer, x, dy)[1]) != np.asarray(evaluated[1]))
    assert layer.dot_general.rngs.count[...] == 1


def test_nnx_scan_over_layers(checking_leaks):
    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs):
        product = DotGeneral(rngs=rngs)
        return nnx.Linear(64, 64, use_bias=False, dtype=jnp.bfloat16, dot_general=product, rngs=rngs)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(layer, x):
        return nnx.tanh(layer(x))

    @nnx.jit
    def step(layers, x):
        return nnx.value_and_grad(lambda layers: jnp.mean(jnp.square(forward(layers, x)).astype(jnp.float32)))(layers)

    layers, x = create(nnx.Rngs(0, sr=1)), normal(2, 32, 64)
    with checking_leaks():
        loss, grads = step(layers, x)
    again, other = step(layers, x)
    assert np.isfinite(loss) and loss == again
    for grad, different in zip(jax.tree.leaves(grads), jax.tree.leaves(other), strict=True):
        assert grad.dtype == jnp.float32 and np.all(np.isfinite(grad))
        assert all(np.any(np.asarray(grad[i]) != np.asarray(different[i])) for i in range(4))
    np.testing.assert_array_equal(layers.dot_general.rngs.count[...], [2] * 4)


def test_lax_scan_over_layers(checking_leaks):
    def loss(kernels, x, keys):
        def layer(x, kernel_and_key):
            kernel, key = kernel_and_key
            return jnp.tanh(dot_general(x, kernel.astype(x.dtype), DENSE, key=key)), None

        return jnp.mean(jnp.square(jax.lax.scan(layer, x, (kernels, keys))[0]).astype(jnp.float32))

    kernels, x = normal(1, 4, 64, 64, dtype=jnp.float32) / 8, normal(2, 32, 64)
    keys = jax.random.split(jax.random.key(3), 4)
    with checking_leaks():
        value, grads = jax.jit(jax.value_and_grad(loss))(kernels, x, keys)
    assert np.isfinite(value)
    assert grads.dtype == jnp.float32 and np.all(np.isfinite(grads)) and np.all(np.any(grads != 0, axis=(1, 2)))


def test_several_axes_are_one():
    x = normal(2, 3, 8, 4, 16)
    general = nnx.LinearGeneral(
        (4, 16), (3, 32), axis=(-2, -1), use_bias=False, dtype=jnp.bfloat16, dot_general=DotGeneral(), rngs=nnx.Rngs(0)
    )
    flat = jax_nvfp4.dot(x.reshape(3, 8, 64), general.kernel[...].astype(jnp.bfloat16).reshape(64, 96).T)
    np.testing.assert_array_equal(general(x), flat.reshape(3, 8, 3, 32))


def test_attention_uses_it_for_four_products():
    def attention(product):
        return nnx.MultiHeadAttention(
            4, 64, dtype=jnp.bfloat16, decode=False, qkv_dot_general=product, out_dot_general=product, rngs=nnx.Rngs(0)
        )

    x, product = normal(2, 2, 32, 64), stochastic()
    with jax.numpy_dtype_promotion("standard"):  # jax.nn.dot_product_attention needs it
        assert 8 <= sqnr(attention(product)(x), attention(None)(x)) < 20
    assert product.rngs.count[...] == 4


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_preferred_element_type(dtype):
    x, w = normal(2, 16, 32), normal(3, 32, 48)
    y = dot_general(x, w, DENSE, jax.lax.Precision.HIGHEST, dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, jax_nvfp4.dot(x, w.T).astype(dtype))


def test_out_sharding():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        layer = linear(DotGeneral())
        y = layer(normal(2, 16, 64), out_sharding=jax.P("data", None))
        assert jax.typeof(y).sharding.spec == jax.P("data", None)


@pytest.mark.parametrize(
    ("lhs", "rhs", "dimension_numbers"),
    [
        ((32, 32), (32, 32), (((0,), (0,)), ((), ()))),
        ((32, 32), (32, 32), (((1,), (1,)), ((), ()))),
        ((2, 32, 32), (2, 32, 32), (((2,), (1,)), ((0,), (0,)))),
        ((4, 32), (32, 4, 16), (((1,), (0,)), ((0,), (1,)))),
        ((32, 4, 8), (8, 4, 32), (((1, 2), (1, 0)), ((), ()))),
        ((32, 32), (32, 32), (((), ()), ((), ()))),
    ],
)
def test_other_dimension_numbers(lhs, rhs, dimension_numbers):
    with pytest.raises(ValueError, match=r"last axes of lhs with the first axes of rhs, without batch axes.*got"):
        dot_general(jnp.ones(lhs), jnp.ones(rhs), dimension_numbers)


def test_sizes_that_differ():
    with pytest.raises(ValueError, match=r"lhs \(32, 64\) and rhs \(32, 128\) differ"):
        dot_general(jnp.ones((32, 64)), jnp.ones((32, 128)), DENSE)


def test_rngs_without_a_stream():
    with pytest.raises(ValueError, match=r"no stream 'sr'.*\['params'\]"):
        DotGeneral(rngs=nnx.Rngs(params=0))


@pytest.mark.parametrize("rngs", [0, jax.random.key(0)], ids=["seed", "key"])
def test_rngs_that_are_none(rngs):
    """A seed or a key where nnx.Rngs is meant: TypeErrors about `in` and `fork`."""
    with pytest.raises(TypeError, match=r"rngs must be an nnx\.Rngs such as nnx\.Rngs\(sr=0\), or None, got "):
        DotGeneral(rngs=rngs)


def test_recipe_that_is_none():
    with pytest.raises(TypeError, match="recipe must be a Recipe such as jax_nvfp4.NVFP4_TRAINING"):
        DotGeneral(nnx.Rngs(0))


@pytest.mark.parametrize("module", ["jax_nvfp4.flax.nnx", "jax_nvfp4.flax.linen"])
def test_without_flax(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=r"needs Flax, and flax \S+ does not import.*'jax_nvfp4\[flax\]'"):
        importlib.import_module(module)
    monkeypatch.setattr("importlib.metadata.distributions", lambda **name: ())
    with pytest.raises(ImportError, match="needs Flax, and it is not installed. Fix: pip install"):
        importlib.import_module(module)
