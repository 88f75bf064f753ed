"""Traces, compilations, the persistent compilation cache, and platforms without a library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, QuantSpec, Recipe
from jax_nvfp4.testing import CASES, make
from jax_nvfp4.testing.cases import SWIZZLED

CACHED = """
import sys
import jax, numpy as np
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import jax_nvfp4
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.float32)
mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

def step(x, w):
    return jax.value_and_grad(lambda w: (jax_nvfp4.dot(x, w, key=jax.random.key(0)) ** 2).sum())(w)

def shard(x):
    t = jax_nvfp4.quantize(x, amax=jax_nvfp4.max_over(jax_nvfp4.amax(x), ["d"]))
    return t.codes, t.scales

if sys.argv[1] == "jit":
    jax.block_until_ready(jax.jit(step)(x, x))
elif sys.argv[1] == "shard_map":
    jax.block_until_ready(jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x))
else:
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
    jax.block_until_ready(jax.jit(step)(jax.device_put(x, NamedSharding(mesh, P("d"))), x))
"""


@pytest.mark.parametrize("path", ["jit", "shard_map", "sharded jit"])
def test_second_process_compiles_nothing(path, tmp_path, run_script):
    """jax-ml/jax#21159, #21236: a cache key that differs in every process."""
    entries = []
    for _ in range(2):
        run_script(CACHED, path, tmp_path)
        entries.append({p.name for p in tmp_path.iterdir() if not p.name.endswith("-atime")})
    assert entries[0] and entries[0] == entries[1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_repeated_calls_do_not_compile(case, count_events):
    x = jnp.asarray(make("normal", (32, 64), "bfloat16"))
    jax.block_until_ready(case.run(x))
    assert count_events(lambda: [case.run(x) for _ in range(5)]) == {"traces": 0, "compilations": 0}


def test_equal_specs_share_a_program(count_events):
    x = jnp.asarray(make("normal", (32, 80), "bfloat16"))

    def call():
        spec = QuantSpec("nvfp4", [1, 16], "tensor", "linear")
        jax_nvfp4.quantize(x, spec)
        jax_nvfp4.qdq(x, spec)
        jax_nvfp4.dot(x, x[:16], Recipe(x=QuantSpec(), w=QuantSpec(block=(16, 16)), grad=QuantSpec()))

    assert count_events(call)["compilations"] > 0
    assert count_events(lambda: [call() for _ in range(5)]) == {"traces": 0, "compilations": 0}


def test_jitted_step_is_traced_once(count_events):
    traces = []

    @jax.jit
    def step(x, w, key):
        traces.append(x.shape)
        return jax.grad(lambda w: jax_nvfp4.dot(x, w, key=key).sum())(w)

    x, w = make("normal", (32, 64), "float32"), make("normal", (48, 64), "float32")
    for i in range(5):
        step(x, w, jax.random.fold_in(jax.random.key(0), i))
    assert traces == [(32, 64)]


@pytest.mark.parametrize("platform", ["tpu", "rocm"])
@pytest.mark.parametrize("case", {case.verb: case for case in CASES}.values(), ids=lambda case: case.verb)
def test_platform_without_handlers(case, platform):
    """jax-ml/jax#38196: a message of the compiler instead of one that names the platform."""
    traced = jax.jit(case.run).trace(jax.ShapeDtypeStruct((32, 64), jnp.float32))
    with pytest.raises(NotImplementedError, match=rf"nvfp4_\w+ runs on CPU and on NVIDIA GPUs, not on {platform}"):
        traced.lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_predicted_shapes(case):
    """flashinfer-ai/flashinfer#3927: a padded buffer reported with its logical shape."""
    for shape in ((33, 48), (48, 33), (160, 144), (2, 3, 32, 64)):
        if case.fits(shape):
            x = jnp.zeros(shape, jnp.float32)
            predicted, actual = jax.eval_shape(case.run, x), case.run(x)
            assert [(a.shape, a.dtype) for a in predicted] == [(a.shape, a.dtype) for a in actual]


def test_swizzled_shape_table():
    x = np.zeros((33, 48), np.float32)
    for spec, shape in ((SWIZZLED, (128, 4)), (NVFP4, (33, 3))):
        assert jax.eval_shape(lambda x, spec=spec: jax_nvfp4.quantize(x, spec), x).scales.shape == shape
