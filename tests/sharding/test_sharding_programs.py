"""Programs with Auto axes as things: serialized, and lowered for meshes that exist on paper only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_nvfp4
from jax_nvfp4.testing import assert_same_bytes, make

X, W = make("normal", (64, 64), "float32"), make("normal", (32, 64), "float32", 1)


def step(x, w):
    y, pullback = jax.vjp(lambda x, w: jax_nvfp4.dot(x, w, key=jax.random.key(0)), x, w)
    return jax_nvfp4.quantize(x), y, *pullback(y)


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_a_serialized_program_runs(explicit, make_mesh, put):
    """Can't pickle local object: what partitioned the program is kept beside it."""
    mesh = make_mesh(2, explicit=explicit)
    with jax.set_mesh(mesh):
        x, w = put(X, mesh, "a"), put(W, mesh)
        program = jax.jit(step).lower(x, w).compile()
        serialized = serialize_executable.serialize(program)
        again = serialize_executable.deserialize_and_load(*serialized, execution_devices=list(mesh.devices.flat))
        for actual, e in zip(jax.tree.leaves(again(x, w)), jax.tree.leaves(program(x, w)), strict=True):
            assert_same_bytes(actual, e, "result")


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("size", [4, 512])
def test_abstract_mesh(size, kind):
    """JAX has no partition without devices: the operation is then one call on the whole array."""
    mesh = AbstractMesh((size,), ("a",), axis_types=(kind,))
    x = jax.ShapeDtypeStruct((16 * size, 64), jnp.float32, sharding=NamedSharding(mesh, P("a")))
    lowered = jax.jit(jax_nvfp4.quantize).trace(x).lower(lowering_platforms=("cpu",))
    assert "nvfp4_quantize" in lowered.as_text() and "CustomSPMDPartitioning" not in lowered.as_text()
    with jax.sharding.use_abstract_mesh(mesh):
        w = jax.ShapeDtypeStruct((32, 64), jnp.float32)
        assert "nvfp4_decode" in jax.jit(step).trace(x, w).lower(lowering_platforms=("cpu",)).as_text()


def test_exported_from_an_abstract_mesh(make_mesh, put):
    """What is exported without devices runs on those there are."""
    mesh = make_mesh(2)
    abstract = AbstractMesh((2,), ("a",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(abstract, P("a")))

    def program(x):
        t = jax_nvfp4.quantize(x)
        return t.codes, t.amax

    exported = jax.export.export(
        jax.jit(program), platforms=(jax.default_backend(),), disabled_checks=jax_nvfp4.export_checks()
    )(x)
    actual = jax.jit(jax.export.deserialize(exported.serialize()).call)(put(X, mesh, "a"))
    for a, e in zip(actual, program(np.asarray(X)), strict=True):
        assert_same_bytes(a, e, "result")
