"""vmap of every operation equals the batched operation and a loop (docs/numerics.md sections 2 and 6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, oracle
from jax_nvfp4.testing import CASES, arrays, assert_same_bytes, key_words, make, random_key


def operand(shape=(3, 32, 64), dtype="bfloat16"):
    scale = np.exp2(np.arange(np.prod(shape[:-2])) * 3).reshape(*shape[:-2], 1, 1)
    return (make("normal", shape, "float32") * scale).astype(dtype)


@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_vmap_is_the_batched_operation(case, in_axis):
    x = operand()
    actual = jax.vmap(case.run, in_axes=in_axis)(jnp.moveaxis(x, 0, in_axis))
    for a, expected in zip(actual, case.reference(x), strict=True):
        assert_same_bytes(a, expected, case.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nested_vmap_under_jit(case):
    """The outermost axis is the slowest part of the batch index, whatever axis of the operand it was."""
    x = operand((2, 3, 2, 32, 32))
    nested = jax.jit(jax.vmap(jax.vmap(case.run, in_axes=2)))(jnp.moveaxis(x, 1, 3))
    for a, expected in zip(nested, case.reference(x), strict=True):
        assert_same_bytes(a, expected, case.name)


def test_out_axes():
    x = operand()
    codes, scales = jax.vmap(lambda x: arrays(jax_nvfp4.quantize(x))[:2], out_axes=1)(x)
    expected = oracle.quantize(x)
    assert_same_bytes(codes, np.moveaxis(expected.codes, 0, 1), "codes")
    assert_same_bytes(scales, np.moveaxis(expected.scales, 0, 1), "scales")


def test_one_amax_for_all_examples():
    x = operand()
    codes = jax.vmap(lambda x, g: jax_nvfp4.quantize(x, amax=g).codes, in_axes=(0, None))(x, jnp.float32(64))
    assert_same_bytes(codes, oracle.quantize(x, amax=np.full(3, 64, np.float32)).codes, "codes")


def test_one_operand_for_all_amaxes():
    x, g = operand((32, 64)), np.array([0.5, 2, 8], np.float32)
    codes = jax.vmap(lambda g: jax_nvfp4.quantize(x, amax=g).codes)(g)
    assert_same_bytes(codes, oracle.quantize(np.stack([x] * 3), amax=g).codes, "codes")


@pytest.mark.parametrize("axis", [-1, -2])
def test_batched_keys(axis):
    x = make("uniform", (3, 32, 64), "float32")
    keys = jax.random.split(random_key(), 3)
    codes = jax.vmap(lambda x, key: jax_nvfp4.quantize(x, axis=axis, key=key).codes)(x, keys)
    words = np.stack([key_words(key) for key in keys])
    assert_same_bytes(codes, oracle.quantize(x, axis=axis, key=words).codes, "codes")


def test_batched_keys_alone():
    """One operand, three keys: three roundings."""
    x = make("uniform", (32, 64), "float32")
    keys = jax.random.split(random_key(), 3)
    codes = jax.vmap(lambda key: jax_nvfp4.quantize(x, key=key).codes)(keys)
    words = np.stack([key_words(key) for key in keys])
    assert_same_bytes(codes, oracle.quantize(np.stack([x] * 3), key=words).codes, "codes")


def test_batched_origins_replace_the_mapped_index():
    x = make("uniform", (2, 32, 64), "float32")
    whole = oracle.quantize(x.reshape(64, 64), amax=12.0, key=key_words(random_key()))

    def part(x, row):
        return jax_nvfp4.quantize(x, amax=12.0, key=random_key(), origin=(0, row, 0)).codes

    codes = jax.vmap(part)(x, jnp.array([0, 32], jnp.uint32))
    assert_same_bytes(codes.reshape(64, 32), whole.codes, "codes")


def test_vmap_inside_scan():
    x = operand((4, 3, 32, 64))
    _, codes = jax.lax.scan(lambda c, x: (c, jax.vmap(lambda x: jax_nvfp4.quantize(x).codes)(x)), 0, x)
    assert_same_bytes(codes, oracle.quantize(x).codes, "codes")


def test_vmap_of_quantize_of_experts():
    x = operand((4, 32, 48))
    row, column = jax.vmap(lambda w: jax_nvfp4.quantize_dual(w, NVFP4_2D))(x)
    for t, expected in zip((row, column), oracle.quantize_dual(x, NVFP4_2D), strict=True):
        for a, e in zip(arrays(t), arrays(expected), strict=True):
            assert_same_bytes(a, e, "dual")


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
def test_vmap_of_dot_gradients(recipe):
    """Per-example gradients with per-example keys equal a loop, bit for bit where the products are."""
    x, w = operand((3, 32, 64), "float32"), make("normal", (48, 64), "float32")
    keys = jax.random.split(random_key(), 3)

    def loss(w, x, key):
        return jnp.sum(jax_nvfp4.dot(x, w, recipe, key) ** 2)

    batched = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(w, x, keys)
    loop = jnp.stack([jax.grad(loss)(w, x[i], keys[i]) for i in range(3)])
    if recipe is NVFP4_QAT:
        np.testing.assert_allclose(batched, loop, rtol=1e-4, atol=1e-4 * np.abs(loop).max(axis=(1, 2)).min())
    else:  # example 0 draws as it does alone; later ones differ by their batch index
        np.testing.assert_allclose(batched[0], loop[0], rtol=1e-4, atol=1e-4 * np.abs(loop[0]).max())
        assert (np.abs(batched - loop).mean(axis=(1, 2)) < 0.3 * np.abs(loop).mean(axis=(1, 2))).all()
