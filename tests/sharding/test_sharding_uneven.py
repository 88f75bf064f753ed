"""Dimensions that the mesh does not divide, in the same program as the operation (Auto axes): one device's bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, QuantSpec, sharding
from jax_nvfp4.testing import assert_same_bytes, make

KEY = jax.random.key(3)
OPERATIONS = {
    "amax": lambda x: jax_nvfp4.amax(x),
    "amax of rows": lambda x: jax_nvfp4.amax(x, scope="row"),
    "qdq": lambda x: jax_nvfp4.qdq(x),
    "quantize": lambda x: jax_nvfp4.quantize(x, QuantSpec(scope="row")),
    "stochastic": lambda x: jax_nvfp4.quantize(x, key=KEY),
    "swizzled": lambda x: jax_nvfp4.quantize(x, QuantSpec(scale_layout="swizzled")),
    "there and back": lambda x: jax_nvfp4.dequantize(jax_nvfp4.quantize(x, NVFP4), jnp.float32),
    "decode": lambda x: jax_nvfp4.decode(jax_nvfp4.quantize(x)),
    "both directions": lambda x: jax_nvfp4.quantize_dual(jax_nvfp4.pad_to_blocks(x, axis=-2), NVFP4_2D),
    "columns": lambda x: jax_nvfp4.quantize(jax_nvfp4.pad_to_blocks(x, axis=-2), axis=-2, key=KEY),
}


def uneven(x, layout):
    return x if layout is None else jax.lax.with_sharding_constraint(x, layout)


PRODUCERS = {
    "slice of rows": lambda x, s: x[:3],
    "slice of columns": lambda x, s: x[:, 16:64],
    "shift": lambda x, s: x[:-1],
    "split": lambda x, s: jnp.split(x, [5])[1],
    "pad": lambda x, s: jnp.pad(x, ((0, 3), (0, 16))),
    "concatenate": lambda x, s: jnp.concatenate([x, x[:1]]),
    "dynamic slice": lambda x, s: jax.lax.dynamic_slice(x, (2, 0), (9, 80)),
    "constraint": lambda x, s: uneven(x[:13], s),
}
LAYOUTS = {
    "rows": (("a", None), (2,)),
    "columns": ((None, "a"), (2,)),
    "both": (("a", "b"), (4, 2)),
    "rows over two axes": ((("b", "a"), None), (4, 2)),
}


@functools.cache
def on_one_device(operation, producer):
    x = jnp.asarray(make("outlier", (16, 80), "float32"))
    return jax.tree.map(np.asarray, jax.jit(lambda x: operation(producer(x, None)))(x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_operations(producer, layout, make_mesh, put):
    """Several operations in one program: each has its own sharding rule, and all of them meet the uneven operand."""
    spec, shape = LAYOUTS[layout]
    mesh = make_mesh(*shape)
    layout = NamedSharding(mesh, PartitionSpec(*spec))
    x = put(make("outlier", (16, 80), "float32"), mesh, *spec)
    results = jax.jit(lambda x: [op(PRODUCERS[producer](x, layout)) for op in OPERATIONS.values()])(x)
    for (name, operation), result in zip(OPERATIONS.items(), results, strict=True):
        expected = on_one_device(operation, PRODUCERS[producer])
        for actual, e in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert_same_bytes(actual, e, name)


@pytest.mark.parametrize("experts", [3, 6])
def test_experts_that_do_not_divide(experts, make_mesh):
    """6 experts over 4 devices."""
    mesh = make_mesh(4)
    w = make("normal", (experts, 32, 64), "bfloat16")
    layout = NamedSharding(mesh, PartitionSpec("a"))

    @jax.jit
    def f(w):
        return jax_nvfp4.quantize_dual(uneven(w, layout), NVFP4_2D)

    for actual, e in zip(jax.tree.leaves(f(w)), jax.tree.leaves(jax_nvfp4.quantize_dual(w, NVFP4_2D)), strict=True):
        assert_same_bytes(actual, e, "codes")


def gradient(x, w, recipe):
    def loss(x, w):
        return (jax_nvfp4.dot(x[:, :-1], w, recipe, None if recipe == NVFP4_QAT else KEY) ** 2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))(x, w)


@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])
def test_next_token_shift(recipe, make_mesh, put):
    mesh = make_mesh(2, 2)
    x, w = make("normal", (4, 16, 64), "float32"), make("normal", (48, 64), "float32", 1)
    expected = jax.jit(gradient, static_argnums=2)(x, w, recipe)
    for spec_x, spec_w in ((("a", "b"), ()), ((None, "a"), ("b",)), ((None, ("a", "b")), ()), (("a", "b"), ("a", "b"))):
        actual = jax.jit(gradient, static_argnums=2)(put(x, mesh, *spec_x), put(w, mesh, *spec_w), recipe)
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * np.abs(e).max())


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_dot_on_any_number_of_devices(count):
    """Its own padding of the tokens to 16 is uneven there."""
    if jax.device_count() < count:
        pytest.skip(f"needs {count} devices")
    mesh = jax.make_mesh((count,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    x, w = make("normal", (4 * count, 64), "float32"), make("normal", (48, 64), "float32", 1)
    step = jax.jit(
        lambda x, w: jax.value_and_grad(lambda x, w: (jax_nvfp4.dot(x, w, key=KEY) ** 2).sum(), argnums=(0, 1))(x, w)
    )
    actual = step(jax.device_put(x, NamedSharding(mesh, PartitionSpec("a"))), w)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(step(x, w)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * np.abs(e).max())


GSPMD = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jax_nvfp4
jax.config.update("jax_use_shardy_partitioner", False)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
w = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)

def step(x, w):
    quantized = jax_nvfp4.quantize(x[:7])
    y = jax_nvfp4.dot(x, w)
    return quantized, *jax.grad(lambda x, w: (jax_nvfp4.dot(x, w) ** 2).sum(), argnums=(0, 1))(x, w)

expected = jax.jit(step)(x, w)
for spec in (P("a", "b"), P(None, "a"), P(("a", "b"))):
    actual = jax.jit(step)(jax.device_put(x, NamedSharding(mesh, spec)), w)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float32), np.asarray(e, np.float32)
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-3 * np.abs(e).max())
print("the same")
"""


def test_without_shardy(run_script):
    """The process was aborted: GSPMD asks for a rule in Python and dies of its absence."""
    if jax.device_count() < 4:
        pytest.skip("needs 4 devices")
    assert run_script(GSPMD).strip().endswith("the same")


def test_a_dimension_is_batch_by_its_place():
    """Not by the first letter of its name: a dimension that is in no table of blocks is never cut."""
    plan = sharding._Plan(sharding.Dims(("bias k",), ("bias k",), {"k": 16}), [(4, 32, 64)], [(4, 32, 64)])
    assert [plan.pieces(name) for name in plan.names[0][0]] == [4, None, 4]
    rule, factors, replicated = plan.shardy_rule()
    assert rule.count("batch0") == 2 and "bias" not in rule
