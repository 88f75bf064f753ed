"""What only a GPU can show. The bytes of every operation are the business of tests/ops, which runs there unchanged."""

import ctypes
import dataclasses
import inspect
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, ffi, oracle
from jax_nvfp4.mode import Mode, Scope
from jax_nvfp4.testing import CASES, Case, arrays, assert_same_bytes, make, random_key
from jax_nvfp4.testing.cases import COL, DUAL

if jax.default_backend() != "gpu":
    pytest.skip("no GPU", allow_module_level=True)


def selftest(target: str, x, dtype, shape=None):
    """A primitive alone: the custom calls that only the CUDA library has."""
    handler = jax.ffi.pycapsule(getattr(ffi.library("cuda"), target))
    jax.ffi.register_ffi_target(target, handler, platform="CUDA")
    return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape or x.shape, dtype))(x)


@jax.jit
def nearest_codes(x):
    """E2M1 codes by comparison with the midpoints, which XLA cannot round; ties go to the even code."""
    a = jnp.abs(x)
    ties = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
    code = sum(jnp.where((a >= m) if up else (a > m), 1, 0) for m, up in ties)
    sign = jax.lax.shift_right_logical(jax.lax.bitcast_convert_type(x, jnp.uint32), jnp.uint32(28)) & jnp.uint32(8)
    return jnp.where(jnp.isnan(x), 7, code + sign.astype(jnp.int32)).astype(jnp.uint8)


def test_the_comparison_is_the_oracle_on_every_bfloat16():
    x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    assert_same_bytes(nearest_codes(x), oracle.e2m1.encode(x), "reference")
    assert_same_bytes(selftest("nvfp4_selftest_e2m1", jnp.asarray(x), jnp.uint8), oracle.e2m1.encode(x), "E2M1")
    assert_same_bytes(
        selftest("nvfp4_selftest_e4m3", jnp.asarray(x), jnp.uint8), oracle.e4m3.encode(x).view(np.uint8), "E4M3"
    )


def test_e2m1_of_every_float32():
    @jax.jit
    def differences(start):
        bits = jnp.arange(1 << 26, dtype=jnp.uint32) + start
        x = jax.lax.bitcast_convert_type(bits, jnp.float32)
        return jnp.sum(selftest("nvfp4_selftest_e2m1", x, jnp.uint8) != nearest_codes(x))

    wrong = [int(differences(jnp.uint32(chunk << 26))) for chunk in range(64)]
    assert sum(wrong) == 0, wrong


def test_philox_of_random_counters_and_keys():
    words = np.random.default_rng(0).integers(1 << 32, size=(1 << 16, 6), dtype=np.uint32)
    words[0], words[1] = 0, 0xFFFFFFFF
    draws = selftest("nvfp4_selftest_philox", jnp.asarray(words), jnp.uint32, (len(words), 4))
    assert_same_bytes(draws, oracle.philox.philox4x32(words[:, :4], words[:, 4:]), "Philox")


def chain(x):
    """Eight dependent custom calls."""
    for i in range(4):
        t = jax_nvfp4.quantize(x, axis=-1 - i % 2, key=random_key() if i == 3 else None)
        x = jax_nvfp4.dequantize(t, x.dtype) * 0.75
    return arrays(t)


COMMAND_BUFFERS = f"""
import sys
import jax, numpy as np
import jax_nvfp4
from jax_nvfp4.testing import arrays, make, random_key
{inspect.getsource(chain)}
jitted = jax.jit(chain)
inputs = [jax.numpy.asarray(make("normal", (256, 512), "bfloat16", seed)) for seed in range(10)]
jax.block_until_ready(jitted(inputs[0]))
jax.block_until_ready(jitted(inputs[1]))
with jax.profiler.trace(sys.argv[1]):
    results = [jax.block_until_ready(jitted(x)) for x in inputs]
np.savez(sys.argv[2], *(np.asarray(a).view(np.uint8) for result in results for a in result[:2]))
"""


def test_command_buffers_capture_the_calls_and_replay_with_new_inputs(run_script, tmp_path):
    flags = {
        "on": "--xla_gpu_enable_command_buffer=+CUSTOM_CALL --xla_gpu_graph_min_graph_size=1",
        "off": "--xla_gpu_enable_command_buffer=",
    }
    launches, results = {}, {}
    for mode, flag in flags.items():
        trace, file = tmp_path / mode, tmp_path / f"{mode}.npz"
        run_script(COMMAND_BUFFERS, trace, file, XLA_FLAGS=flag)
        (profile,) = Path(trace).rglob("*.xplane.pb")
        launches[mode] = profile.read_bytes().count(b"cuGraphLaunch")
        results[mode] = [a.tobytes() for a in np.load(file).values()]
    assert launches["on"] > 0 and launches["off"] == 0, launches
    assert results["on"] == results["off"]


def test_waits_for_the_producer_on_the_same_stream():
    x = jnp.asarray(make("normal", (2048, 2048), "float32"))

    @jax.jit
    def produced(x):
        for _ in range(8):
            x = jnp.tanh(x @ x)
        return x, *arrays(jax_nvfp4.quantize(x))

    x_first, *first = produced(x)
    for _ in range(100):
        for again, once in zip(produced(x)[1:], first, strict=True):
            assert_same_bytes(again, once, "repeat")
    for result, expected in zip(first, arrays(oracle.quantize(np.asarray(x_first))), strict=True):
        assert_same_bytes(result, expected, "oracle")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_repeats_give_the_same_bytes(case):
    x = jnp.asarray(make("block_spread", (224, 352), "bfloat16"))
    first = case.run(x)
    for _ in range(50):
        for again, once in zip(case.run(x), first, strict=True):
            assert_same_bytes(again, once, case.name)


@pytest.mark.parametrize(
    "case",
    [
        Case("amax"),
        Case("quantize"),
        Case("quantize", axes=COL),
        Case("quantize", NVFP4_2D, DUAL),
        Case("qdq"),
        Case("dequantize", dtype="bfloat16"),
    ],
    ids=lambda case: case.name,
)
def test_more_than_2_to_the_31_elements(case):
    rows, columns = 1 << 17, (1 << 14) + NVFP4.facts.block
    assert rows * columns > 1 << 31
    amax = jnp.float32(5)
    x = jax.jit(lambda key: jax.random.normal(key, (rows, columns), jnp.bfloat16))(jax.random.key(0))
    results = case.call(*case.operands(x, amax))
    if case.verb == "amax":
        assert results[0] == jnp.max(jnp.abs(x)).astype(jnp.float32)
        return
    tail = 128  # rows of x
    expected = case.reference(np.asarray(x[-tail:]), np.float32(5))
    expected = [e for e in expected if np.ndim(e)]  # without the amax
    transposed = [False] * len(results) if case.verb != "quantize" else [a == -2 for a in case.axes for _ in range(2)]
    for i, (actual, e, is_transposed) in enumerate(zip(results, expected, transposed, strict=True)):
        last = actual[:, -e.shape[1] :] if is_transposed else actual[-tail:]
        assert_same_bytes(last, e, f"result {i}")


def test_more_matrices_than_a_grid_has_rows():
    x = make("normal", ((1 << 16) + 3, 16, 16), "bfloat16")
    expected = oracle.quantize(x)
    t = jax_nvfp4.quantize(jnp.asarray(x))
    for got, wanted in zip(arrays(t), arrays(expected), strict=True):
        assert_same_bytes(got, wanted, "quantize")
    assert_same_bytes(jax_nvfp4.dequantize(t), oracle.dequantize(expected), "dequantize")
    for spec in (jax_nvfp4.NVFP4, NVFP4_2D):
        assert_same_bytes(jax_nvfp4.qdq(jnp.asarray(x), spec), oracle.qdq(x, spec), "qdq")
        got = arrays(jax_nvfp4.quantize(jnp.asarray(x), spec, axis=-2))
        for result, wanted in zip(got, arrays(oracle.quantize(x, spec, axis=-2)), strict=True):
            assert_same_bytes(result, wanted, "quantize")


def run_where_there_is_a_kernel(case, x):
    """Whatever of the table this build has."""
    try:
        jax.block_until_ready(jax.jit(case.run)(x))
    except jax.errors.JaxRuntimeError as error:
        if not ffi.is_without_kernel(error):
            raise


def test_nothing_is_compiled_at_run_time():
    """The library is all there is: neither the DSL nor anything it could compile with is loaded by any operation."""
    for case in CASES:
        run_where_there_is_a_kernel(case, jnp.asarray(make("normal", (64, 64), "float32")))
    assert not [name for name in sys.modules if name.split(".")[0] in ("cutlass", "triton", "numba")]
    maps = Path("/proc/self/maps").read_text()
    assert "libjax_nvfp4_cuda" in maps
    assert "cutlass" not in maps and "libnvvm" not in maps


def test_every_device_from_its_own_thread():
    """The first use of a kernel on a device loads it there: the last device first, then all at once."""
    x = make("normal", (64, 256), "bfloat16")
    expected = oracle.quantize(x)
    failures = []

    def use(device):
        try:
            for _ in range(20):
                t = jax_nvfp4.quantize(jax.device_put(x, device))
                for result, e in zip(arrays(t), arrays(expected), strict=True):
                    assert_same_bytes(result, e, str(device))
        except BaseException as error:
            failures.append(error)

    use(jax.devices()[-1])
    threads = [threading.Thread(target=use, args=(device,)) for device in jax.devices() for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_mode_without_a_kernel_says_where_to_add_one():
    call = jax.ffi.ffi_call("nvfp4_amax", jax.ShapeDtypeStruct((2,), jnp.float32))
    mode = Mode(scope=Scope.GROUP).attribute()
    with pytest.raises(jax.errors.JaxRuntimeError, match="no kernel amax for F32 .*kernels/variants.py"):
        jax.block_until_ready(
            jax.jit(lambda x, sizes: call(x, sizes, mode=mode))(jnp.ones((32, 64)), jnp.array([16, 16], jnp.int32))
        )


def test_the_scale_layouts_of_two_directions_are_independent():
    x = make("block_spread", (144, 80), "bfloat16")
    swizzled = dataclasses.replace(NVFP4_2D, scale_layout="swizzled")
    for spec, col_spec in ((NVFP4_2D, swizzled), (swizzled, NVFP4_2D)):
        row, column = jax_nvfp4.quantize_dual(jnp.asarray(x), spec, col_spec=col_spec)
        for result, expected in ((row, oracle.quantize(x, spec)), (column, oracle.quantize(x, col_spec, axis=-2))):
            for got, wanted in zip(arrays(result), arrays(expected), strict=True):
                assert_same_bytes(got, wanted, spec.scale_layout)


def test_the_library_names_its_families():
    families = ffi.library("cuda").jax_nvfp4_cuda_archs
    families.restype = ctypes.c_char_p
    assert b"sm_90a" in families()


ODD_SIZES = f"""
import jax
from jax_nvfp4 import ffi
from jax_nvfp4.testing import CASES, make
{inspect.getsource(run_where_there_is_a_kernel)}
for shape in [(33, 48), (48, 33), (208, 336), (3, 16, 144), (96, 160)]:
    for dtype in ("bfloat16", "float16", "float32"):
        for case in CASES:
            if case.fits(shape):
                run_where_there_is_a_kernel(case, make("block_spread", shape, dtype))
print("ran")
"""


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_finds_nothing_at_odd_sizes(tool):
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", ODD_SIZES]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # this process has most of the memory
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and "ran" in result.stdout, result.stdout[-3000:] + result.stderr[-1000:]
