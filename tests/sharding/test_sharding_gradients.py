"""Gradients and products on a mesh: as on one device, up to the order of sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_policies
from jax.sharding import PartitionSpec as P

import jax_nvfp4
from jax_nvfp4 import NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, oracle
from jax_nvfp4.testing import assert_same_bytes, make

X, W, DY = (
    make("normal", (256, 512), "float32"),
    make("normal", (256, 512), "float32", 1),
    make("normal", (256, 256), "float32", 2),
)
PARALLEL = {
    "data": (("a", None), (None, None), ("a", None)),
    "output features": ((None, None), ("a", None), (None, "a")),
    "input features": ((None, "a"), (None, "a"), (None, None)),
    "data and output features": (("a", None), ("b", None), ("a", "b")),
    "data and input features": (("a", "b"), (None, "b"), ("a", None)),
    "fully sharded": (("a", None), ("a", None), ("a", None)),
}


def step(x, w, dy, recipe, key):
    y, pullback = jax.vjp(lambda x, w: jax_nvfp4.dot(x, w, recipe, key), x, w)
    return y, *pullback(dy)


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", [("a", None), (None, "a")], ids=["rows", "columns"])
def test_gradient_of_qdq(spec, explicit, make_mesh, put):
    mesh = make_mesh(-1, explicit=explicit)
    with jax.set_mesh(mesh):
        x = put(X, mesh, *spec)
        gradient = jax.jit(jax.grad(lambda x: (jax_nvfp4.qdq(x, NVFP4_2D) * x).sum()))(x)
        assert gradient.sharding.is_equivalent_to(x.sharding, 2)
    assert_same_bytes(gradient, oracle.qdq(X, NVFP4_2D) + X, "gradient")


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
@pytest.mark.parametrize("parallel", PARALLEL)
def test_dot(parallel, recipe, make_mesh, put):
    """Codes do not depend on the mesh, so even stochastic gradients agree to the rounding of float32 sums."""
    run = jax.jit(lambda x, w, dy: step(x, w, dy, recipe, jax.random.key(7)))
    expected = run(X, W, DY)
    mesh = make_mesh(-1, 2)
    with jax.set_mesh(mesh):
        results = run(*(put(a, mesh, *spec) for a, spec in zip((X, W, DY), PARALLEL[parallel], strict=True)))
    for what, actual, e in zip(("y", "dx", "dw"), results, expected, strict=True):
        np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max(), err_msg=what)


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
@pytest.mark.parametrize("parallel", ["data", "output features", "data and output features"])
def test_dot_under_explicit_axes(parallel, recipe, make_mesh, put):
    mesh = make_mesh(-1, 2, explicit=True)
    run = jax.jit(lambda x, w, dy: step(x, w, dy, recipe, jax.random.key(7)))
    expected = run(X, W, DY)
    with jax.set_mesh(mesh):
        x, w, dy = (put(a, mesh, *spec) for a, spec in zip((X, W, DY), PARALLEL[parallel], strict=True))
        results = run(x, w, dy)
        for actual, like in zip(results, (dy, x, w), strict=True):
            assert actual.sharding.is_equivalent_to(like.sharding, 2)
    for what, actual, e in zip(("y", "dx", "dw"), results, expected, strict=True):
        np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max(), err_msg=what)


def test_no_operand_of_dot_is_gathered_in_data_parallel_training(make_mesh, put, count_all_gathers):
    mesh = make_mesh(-1)
    operands = (put(a, mesh, *spec) for a, spec in zip((X, W, DY), PARALLEL["data"], strict=True))
    assert count_all_gathers(lambda x, w, dy: step(x, w, dy, NVFP4_TRAINING, jax.random.key(0)), *operands) == 0


@pytest.mark.parametrize("blocks", [4, 2])
def test_contraction_over_more_devices_than_blocks(blocks, make_mesh, put):
    """The Shardy rule of jax.nn.scaled_matmul shares one factor of K between data and scales."""
    mesh = make_mesh(min(4, jax.device_count()))
    x, w = X[:32, : 16 * blocks], W[:32, : 16 * blocks]
    y = jax.jit(jax_nvfp4.dot)(put(x, mesh, None, "a"), put(w, mesh, None, "a"))
    expected = jax_nvfp4.dot(x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("policy", [None, checkpoint_policies.save_only_these_names("nvfp4_q")], ids=["all", "named"])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_remat_on_a_mesh(policy, impl, make_mesh, put):
    """jax-ml/jax#21046: random bits that differ when they are computed again on a mesh."""
    key = jax.random.key(7, impl=impl)

    def loss(w, x):
        return (jax_nvfp4.dot(jnp.tanh(x), w, key=key) ** 2).sum()

    plain = jax.jit(jax.grad(loss))(W, X)
    mesh = make_mesh(-1)
    x = put(X, mesh, "a", None)
    again = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy)))(put(W, mesh, None, None), x)
    np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-4 * np.abs(plain).max())


def test_training_step_in_shard_map(make_mesh, put):
    """Data parallel by hand: each device its own tokens, the gradients summed."""
    mesh = make_mesh(-1)

    def local(x, w, dy):
        y, pullback = jax.vjp(lambda w: jax_nvfp4.dot(x, w), w)
        return y, *pullback(dy)

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("a"), P(), P("a")), out_specs=(P("a"), P()), check_vma=True)
    y, dw = jax.jit(f)(put(X, mesh, "a", None), put(W, mesh, None, None), put(DY, mesh, "a", None))
    exact_y, exact_dw = X @ W.T, DY.T @ X
    for actual, exact in ((y, exact_y), (dw, exact_dw)):
        assert np.linalg.norm(actual - exact) < 0.2 * np.linalg.norm(exact)
