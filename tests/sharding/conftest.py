"""Meshes over the devices there are: eight virtual ones on a CPU, or the GPUs of the machine."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICES = min(8, 1 << (jax.device_count().bit_length() - 1))


@pytest.fixture(autouse=True)
def several_devices():
    if DEVICES < 2:
        pytest.skip("one device: nothing to shard over")


@pytest.fixture
def devices() -> int:
    """How many devices a mesh may have, a power of two."""
    return DEVICES


@pytest.fixture
def make_mesh():
    """A mesh ("a", "b", ...) of a shape; -1 is whatever is left of the devices."""

    def make(*shape: int, explicit: bool = False):
        shape = tuple(DEVICES // math.prod(n for n in shape if n > 0) if n < 0 else n for n in shape)
        count = math.prod(shape)
        if count > DEVICES or 0 in shape:
            pytest.skip(f"needs {math.prod(n or 2 for n in shape)} devices, there are {DEVICES}")
        kind = AxisType.Explicit if explicit else AxisType.Auto
        names = tuple("abc"[: len(shape)])
        return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=jax.devices()[:count])

    return make


@pytest.fixture
def put():
    """An array on a mesh, sharded."""

    def on_mesh(x, mesh, *spec):
        return jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec(*spec)))

    return on_mesh


def all_gathers(function, *operands) -> int:
    """How many all-gathers the compiled program holds."""
    return jax.jit(function).lower(*operands).compile().as_text().count("all-gather(")


@pytest.fixture
def count_all_gathers():
    return all_gathers
