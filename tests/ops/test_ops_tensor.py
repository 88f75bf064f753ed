"""`BlockScaled`: transposition, pytree, files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.testing import arrays, assert_same_bytes, make

MODES = [
    (NVFP4, -1),
    (NVFP4, -2),
    (NVFP4_2D, -2),
    (QuantSpec(scope="row"), -1),
    (QuantSpec(scale_layout="swizzled"), -2),
]


def quantized(spec=NVFP4, axis=-1, shape=(2, 32, 64)):
    return jax_nvfp4.quantize(make("nan_block", shape, "bfloat16"), spec, axis=axis)


def assert_equal(a, b):
    for field, x, y in zip(("codes", "scales", "amax"), arrays(a), arrays(b), strict=True):
        assert_same_bytes(x, y, field)
    assert (a.spec, a.axis) == (b.spec, b.axis)


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_file(spec, axis, tmp_path):
    t = quantized(spec, axis)
    jax_nvfp4.save(tmp_path / "t.npz", t)
    assert_equal(jax_nvfp4.load(tmp_path / "t.npz"), t)


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_orbax_checkpoint(spec, axis, tmp_path):
    t = quantized(spec, axis)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "t", {"w": t})
        checkpointer.wait_until_finished()
        like = jax.eval_shape(lambda: {"w": t})
        assert_equal(checkpointer.restore(tmp_path / "t", like)["w"], t)


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_pytree_keeps_every_field(spec, axis):
    """NVIDIA/TransformerEngine#2270: a quantizer's state lost by its flatten."""
    t = quantized(spec, axis)
    leaves, tree = jax.tree.flatten(t)
    assert_equal(jax.tree.unflatten(tree, leaves), t)
    assert_equal(jax.jit(lambda t: t)(t), t)
    renamed = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(t)]
    assert renamed == [".codes", ".scales", ".amax"]


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_shape(spec, axis):
    t = quantized(spec, axis)
    assert t.shape == (2, 32, 64) and t.ndim == 3
    assert jax_nvfp4.dequantize(t).shape == t.shape


def test_transpose_renames_the_axis_of_the_blocks():
    """meta-pytorch/ao#4477: data transposed without its scales. Square, so that a mistake has the right shape."""
    x = make("normal", (128, 128), "float32") * np.arange(1, 129, dtype=np.float32)[:, None]
    t = jax_nvfp4.quantize(x)
    assert t.T.axis == -2 and t.T.T == dataclasses.replace(t)
    assert_same_bytes(jax_nvfp4.dequantize(t.T), jax_nvfp4.dequantize(t).T, "values")
    assert t.T.codes is t.codes and t.T.scales is t.scales


def test_columnwise_is_rowwise_of_the_transpose():
    x = make("block_spread", (64, 48), "bfloat16")
    assert_equal(jax_nvfp4.quantize(x, axis=-2), jax_nvfp4.quantize(x.T).T)


def test_odd_nibbles_are_copied():
    """A slice that starts in the middle of a byte of codes."""
    t = quantized(shape=(3, 32))
    codes = np.asarray(t.codes)
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(3, 32)
    shifted = unpacked[:, 1:-1]
    repacked = shifted[:, ::2] | shifted[:, 1::2] << 4
    expected = np.asarray(jax_nvfp4.decode(t))
    values = np.asarray(
        jax_nvfp4.decode(
            dataclasses.replace(
                t, codes=jnp.asarray(np.pad(repacked, ((0, 0), (0, 1)))), scales=jnp.ones_like(t.scales)
            )
        )
    )
    scales = np.repeat(np.asarray(t.scales).astype(np.float32), 16, -1)[:, 1:-1]
    np.testing.assert_array_equal(values[:, :-2].astype(np.float32) * scales, expected[:, 1:-1].astype(np.float32))
