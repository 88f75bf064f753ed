"""Operands in any memory layout, donated buffers, stale padding, and many threads at once."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, oracle
from jax_nvfp4.testing import CASES, Case, assert_same_bytes, make
from jax_nvfp4.testing.cases import COL, DUAL, ROW_SCOPE, SWIZZLED

BLOCK = NVFP4.facts.block
FEW = (
    Case("amax"),
    Case("quantize", ROW_SCOPE),
    Case("quantize", axes=COL, is_stochastic=True),
    Case("quantize", NVFP4_2D, DUAL),
    Case("qdq"),
    Case("dequantize", axes=COL, dtype="float32"),
)
"""One of each kind of access to memory."""

VIEWS = {
    "column slice": lambda x: x[:, 16:80],
    "transposed": lambda x: x.T,
    "every other row": lambda x: x[::2],
    "broadcast": lambda x: jnp.broadcast_to(x[:1], (48, x.shape[1])),
    "reversed": lambda x: x[::-1, ::-1],
    "transposed product": lambda x: (x @ x.T).T,
    "moved axis": lambda x: jnp.moveaxis(x.reshape(6, 16, 16, 8), 3, 1).reshape(48, 256),
}


@pytest.mark.parametrize("under", ["eager", "jit"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, under):
    """vllm-project/vllm#49092: a strided operand read as if it were contiguous."""
    x = jnp.asarray(make("normal", (96, 128), "float32"))
    take, maybe_jit = VIEWS[view], jax.jit if under == "jit" else lambda f: f
    for case in FEW:
        operand, results = maybe_jit(lambda x, case=case: (take(x), case.run(take(x))))(x)
        for actual, expected in zip(results, case.reference(np.asarray(operand)), strict=True):
            assert_same_bytes(actual, expected, f"{case.name} of {view}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_donated_operand(dtype):
    x = make("normal", (64, 128), dtype)
    donated = jnp.array(x)
    y = jax.jit(jax_nvfp4.qdq, donate_argnums=0)(donated)
    assert donated.is_deleted()
    assert_same_bytes(y, oracle.qdq(x), "qdq in place")


@pytest.mark.parametrize("rows", [1, 7, 33, 129])
@pytest.mark.parametrize("columns", [16, 48, 80])
def test_swizzle_padding_is_zero(rows, columns):
    """flashinfer-ai/flashinfer#2726, vllm-project/vllm#47587: padding left as it was in memory."""
    x = make("normal", (rows, columns), "bfloat16")
    expected = oracle.quantize(x, SWIZZLED).scales
    padding = oracle.swizzle_scales(np.ones((rows, columns // BLOCK), np.uint8)) == 0
    for _ in range(2):
        stale = [jnp.full(expected.shape, 0xFF, jnp.uint8) for _ in range(20)]
        jax.block_until_ready(stale)
        del stale
        scales = np.asarray(jax_nvfp4.quantize(x, SWIZZLED).scales)
        assert not scales.view(np.uint8)[padding].any()
        assert_same_bytes(scales, expected, "scales")


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.verb == "quantize" and case.is_swizzled], ids=lambda case: case.name
)
def test_swizzle_padding_is_zero_in_every_mode(case):
    x = make("normal", (96, 160), "float32")
    for axis, scales in zip(case.axes, case.call(x)[1::2], strict=True):
        rows, columns = x.shape if axis == -1 else x.shape[::-1]
        padding = oracle.swizzle_scales(np.ones((rows, columns // case.spec.facts.block), np.uint8)) == 0
        assert padding.any() and not np.asarray(scales).view(np.uint8)[padding].any()


def test_eight_threads_at_once():
    operands = [make("normal", (256, 512), "bfloat16", seed) for seed in range(8)]
    expected = [[case.reference(x) for case in FEW] for x in operands]

    def work(x):
        return [[np.asarray(r) for r in case.run(jnp.asarray(x))] for _ in range(5) for case in FEW]

    with ThreadPoolExecutor(8) as pool:
        for results, references in zip(pool.map(work, operands), expected, strict=True):
            for i, result in enumerate(results):
                for actual, e in zip(result, references[i % len(FEW)], strict=True):
                    assert_same_bytes(actual, e, FEW[i % len(FEW)].name)


def test_the_calling_thread_keeps_its_subnormals():
    """The handlers change the floating-point mode of their threads and must put it back."""
    tiny = np.float32(1e-40)
    jax.block_until_ready(jax_nvfp4.quantize(np.full((16, 16), tiny), NVFP4_2D))
    assert tiny * np.float32(0.5) != 0 and np.float32(1e-20) * np.float32(1e-20) != 0


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA flushes subnormals on CPUs only")
def test_other_operations_keep_their_floating_point_mode():
    def subnormal(x, factor):
        return x * factor

    def after_qdq(x, factor):
        y = jax_nvfp4.qdq(x)
        return (y - y + x) * factor

    for size in (16, 2048):
        x, factor = jnp.full((size, size), 1e-30, jnp.float32), jnp.float32(1e-10)
        assert_same_bytes(jax.jit(after_qdq)(x, factor), jax.jit(subnormal)(x, factor), "1e-40")
    assert not jax.jit(subnormal)(x, factor).any()


@pytest.mark.full
def test_more_than_two_to_the_31_elements():
    x = np.zeros((1 << 15, (1 << 16) + 16), np.dtype("bfloat16"))
    x[-1, -1] = 3.0
    x[-1, 0] = -1.0
    t = jax_nvfp4.quantize(x)
    last = oracle.quantize(x[-1:], amax=3.0)
    assert t.amax == 3.0
    assert_same_bytes(t.codes[-1:], last.codes, "codes of the last row")
    assert not np.asarray(t.codes[:-1]).any()
