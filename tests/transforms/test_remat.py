"""Rematerialization: quantized residuals can be kept by name, and what is computed again is the same."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_policies

import jax_nvfp4
from jax_nvfp4.testing import assert_same_bytes, make


def primitives(jaxpr, counts=None):
    """How often each primitive occurs in a jaxpr and in all jaxprs inside it."""
    counts = collections.Counter() if counts is None else counts
    for equation in jaxpr.eqns:
        counts[equation.primitive.name] += 1
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                primitives(inner, counts)
    return counts


X, W = make("normal", (32, 64), "float32"), make("normal", (48, 64), "float32")
DY = make("normal", (32, 48), "float32", 1)
SAVE_QUANTIZED = checkpoint_policies.save_only_these_names("nvfp4_q")


def loss(x, w, key=None):
    return (jax_nvfp4.dot(jnp.tanh(x), w, key=key) * DY).sum()


def test_named_residuals_are_not_quantized_again():
    """NVIDIA/TransformerEngine#2658, AI-Hypercomputer/maxtext#2773: quantized twice, because nothing has a name."""

    def count(f):
        counts = primitives(jax.make_jaxpr(jax.grad(f, argnums=(0, 1)))(X, W).jaxpr)
        return counts["nvfp4_amax"], counts["nvfp4_quantize"]

    assert count(loss) == (5, 5)  # x and dy each way, w both ways in one call
    assert count(jax.checkpoint(loss, policy=SAVE_QUANTIZED)) == (5, 5)
    # Each direction of x once, but w twice: its rows first, then both ways.
    assert count(jax.checkpoint(loss)) == (6, 6)


@pytest.mark.parametrize("policy", [None, SAVE_QUANTIZED, checkpoint_policies.dots_saveable])
@pytest.mark.parametrize("keyed", [False, True])
def test_gradients_do_not_change(policy, keyed):
    key = jax.random.key(3) if keyed else None
    plain = jax.jit(jax.grad(loss, argnums=(0, 1)))(X, W, key)
    again = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy), argnums=(0, 1)))(X, W, key)
    for a, b in zip(again, plain, strict=True):
        assert_same_bytes(a, b, "gradient")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_stochastic_codes_are_repeated(impl):
    """jax-ml/jax#21046: random bits that differ when they are computed again."""
    key = jax.random.key(5, impl=impl)
    seen = {}

    @jax.custom_vjp
    def watch(x, codes):
        return x

    def watch_bwd(codes, dx):
        jax.debug.callback(lambda c: seen.setdefault("backward", np.asarray(c)), codes)
        return dx, None

    watch.defvjp(lambda x, codes: (x, codes), watch_bwd)

    def f(x):
        codes = jax_nvfp4.quantize(jax.lax.stop_gradient(jnp.tanh(x)), key=key).codes
        return watch(x, codes).sum(), codes

    (_, codes), _ = jax.value_and_grad(jax.checkpoint(f), has_aux=True)(X)
    jax.effects_barrier()
    assert_same_bytes(seen["backward"], codes, "codes")
    assert (np.asarray(codes) != np.asarray(jax_nvfp4.quantize(jnp.tanh(X)).codes)).any()
