"""Settings of every test session, and the fixtures that tests of several rooms share.

The suite runs on whatever devices JAX finds: eight virtual ones on a CPU, or the GPUs of the machine. It also passes
with 64-bit types, `JAX_ENABLE_X64=1 pytest tests/ops tests/transforms`.
"""

import os

DEVICE_COUNT = "--xla_force_host_platform_device_count"
if DEVICE_COUNT not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICE_COUNT}=8".strip()

import contextlib  # noqa: E402
import gc  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

import jax  # noqa: E402
import jax.monitoring  # noqa: E402
import pytest  # noqa: E402

from jax_nvfp4 import ffi  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """On a GPU not every mode has a kernel yet, which is an error that says so."""
    try:
        return (yield)
    except jax.errors.JaxRuntimeError as error:
        if jax.default_backend() == "gpu" and ffi.is_without_kernel(error):
            pytest.skip(str(error).splitlines()[0])
        raise


@pytest.fixture
def run_script():
    """Runs Python source in a fresh process, and returns what it printed."""

    def run(source: str, *arguments, **environment) -> str:
        # -P: not the source tree, which the current directory may be and which holds no native library
        command = [sys.executable, "-P", "-c", source, *map(str, arguments)]
        result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture
def checking_leaks():
    """`jax.checking_leaks` that looks for tracers among the objects made inside only: it searches the heap at every
    trace, which takes minutes once a session has filled it."""

    @contextlib.contextmanager
    def check():
        gc.collect()
        gc.freeze()
        try:
            with jax.checking_leaks():
                yield
        finally:
            gc.unfreeze()

    return check


@pytest.fixture
def count_events():
    """Counts the traces and the compilations that a function call causes."""

    def count(function) -> dict[str, int]:
        names = {"jaxpr_trace_duration": "traces", "backend_compile_duration": "compilations"}
        counts = dict.fromkeys(names.values(), 0)

        def listen(event: str, duration: float, **_):
            name = names.get(event.rsplit("/", 1)[-1])
            if name:
                counts[name] += 1

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            function()
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        return counts

    return count
