"""`grouped_dot` against float64, with the bars of docs/numerics.md section 12."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import MXFP8_TRAINING, NVFP4_QAT, NVFP4_TRAINING
from jax_nvfp4.testing import make, random_key, sqnr

P, K, N = 192, 256, 128
SIZES = np.array([37, 0, 70, 16, 40])
X, DY = make("normal", (P, K), "float32", 1), make("normal", (P, N), "float32", 2)
W = make("normal", (len(SIZES), N, K), "float32", 3)
BARS = {
    "training": (NVFP4_TRAINING, (15, 14, 12)),
    "without transform": (dataclasses.replace(NVFP4_TRAINING, rht=None), (15, 14, 12)),
    "mxfp8": (MXFP8_TRAINING, (27, 25, 24)),
    "qat": (NVFP4_QAT, (18, 18, 40)),
}


def reference():
    y, dx, dw = (np.zeros(s) for s in ((P, N), (P, K), W.shape))
    start = 0
    for group, size in enumerate(SIZES):
        rows = slice(start, start + size)
        x, dy, w = (a.astype(np.float64) for a in (X[rows], DY[rows], W[group]))
        y[rows], dx[rows], dw[group] = x @ w.T, dy @ w, dy.T @ x
        start += size
    return y, dx, dw


@pytest.mark.parametrize("key", [None, random_key()], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("recipe", BARS)
def test_products_and_gradients(recipe, key):
    recipe, bars = BARS[recipe]
    x, w = jnp.asarray(X), jnp.asarray(W)

    @jax.jit
    def run(x, w, sizes):
        y, pull = jax.vjp(lambda x, w: jax_nvfp4.grouped_dot(x, w, sizes, recipe, key), x, w)
        return y, *pull(jnp.asarray(DY))

    with jax.default_matmul_precision("highest"):
        results = run(x, w, SIZES)
    for result, expected, bar in zip(results, reference(), bars, strict=True):
        assert sqnr(result, expected) >= bar
    y, dx, dw = map(np.asarray, results)
    assert not dw[1].any() and not y[SIZES.sum() :].any() and not dx[SIZES.sum() :].any()


def test_padded_groups_need_no_copies():
    sizes = np.array([32, 0, 64, 16, 48])

    def run(**options):
        f = lambda x, w: (jax_nvfp4.grouped_dot(x, w, sizes, **options) * DY).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(f, (0, 1)))(X, W)

    plain, padded = run(), run(groups_are_padded=True)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(padded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    jaxpr = str(jax.make_jaxpr(lambda: run(groups_are_padded=True))())
    assert "gather" not in jaxpr


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_group_does_not_reach_another(value):
    x = X.copy()
    x[50] = value  # in the third group
    y = np.asarray(jax_nvfp4.grouped_dot(x, W, SIZES))
    assert np.isfinite(y[:37]).all() and np.isfinite(y[107:]).all() and not np.isfinite(y[37:107]).any()


@pytest.mark.parametrize(
    "call, error, said",
    [
        (lambda: jax_nvfp4.grouped_dot(X, W[0], SIZES), ValueError, r"w of shape \(E, N, K\)"),
        (lambda: jax_nvfp4.grouped_dot(X, W, SIZES[:2]), ValueError, "5 experts, group_sizes .* 2 groups"),
        (lambda: jax_nvfp4.grouped_dot(X, W.astype(np.float16), SIZES), TypeError, "one dtype"),
        (lambda: jax_nvfp4.grouped_dot(X, W, SIZES, "fp4"), TypeError, "recipe must be a Recipe"),
        (
            lambda: jax_nvfp4.grouped_dot(X[:, :40], W[..., :40], SIZES),
            ValueError,
            "not a multiple of the block size 16",
        ),
    ],
)
def test_arguments(call, error, said):
    with pytest.raises(error, match=said):
        call()
