"""`jax.export`: a program that quantizes, run by another process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jax_nvfp4
from jax_nvfp4 import NVFP4_2D, oracle
from jax_nvfp4.testing import arrays, assert_same_bytes, key_words, make
from jax_nvfp4.testing.cases import SWIZZLED

RUN = """
import sys
import numpy as np
import jax
import jax_nvfp4  # registers the custom calls
program = jax.export.deserialize(open(sys.argv[1], "rb").read())
x = np.load(sys.argv[2])
results = [np.asarray(r) for r in program.call(x)]
np.savez(sys.argv[3], *[r.view(np.uint8) if r.dtype.itemsize == 1 else r for r in results])
"""


def program(x):
    row, column = jax_nvfp4.quantize(x), jax_nvfp4.quantize(x, axis=-2, key=jax.random.key(0))
    swizzled = jax_nvfp4.quantize(x, SWIZZLED)
    tile, _ = jax_nvfp4.quantize_dual(x, NVFP4_2D)
    y = jax_nvfp4.qdq(x)
    return *arrays(row), column.codes, swizzled.scales, tile.codes, jax_nvfp4.dequantize(row, y.dtype), y


def expected(x):
    row, column = oracle.quantize(x), oracle.quantize(x, axis=-2, key=key_words(jax.random.key(0)))
    tile, _ = oracle.quantize_dual(x, NVFP4_2D)
    y = oracle.qdq(x)
    return *arrays(row), column.codes, oracle.quantize(x, SWIZZLED).scales, tile.codes, y, y


@pytest.mark.parametrize("symbols, shapes", [("M, 64", [(128, 64)]), ("16*m, 64", [(16, 64), (144, 64)])])
def test_in_a_fresh_process(symbols, shapes, tmp_path, run_script):
    if symbols == "M, 64":
        operand = jax.ShapeDtypeStruct(shapes[0], jnp.float32)
    else:
        operand = jax.ShapeDtypeStruct(export.symbolic_shape(symbols), jnp.float32)
    exported = export.export(jax.jit(program), disabled_checks=jax_nvfp4.export_checks())(operand)
    (tmp_path / "program").write_bytes(exported.serialize())
    for shape in shapes:
        x = make("normal", shape, "float32")
        np.save(tmp_path / "x.npy", x)
        run_script(RUN, tmp_path / "program", tmp_path / "x.npy", tmp_path / "results.npz")
        with np.load(tmp_path / "results.npz") as results:
            for (name, actual), e in zip(results.items(), expected(x), strict=True):
                assert_same_bytes(actual, e.view(np.uint8) if e.dtype.itemsize == 1 else e, name)


def test_symbolic_batch():
    operand = jax.ShapeDtypeStruct(export.symbolic_shape("b, 32, 64"), jnp.bfloat16)
    exported = export.export(jax.jit(program), disabled_checks=jax_nvfp4.export_checks())(operand)
    x = make("normal", (3, 32, 64), "bfloat16")
    for actual, e in zip(exported.call(x), expected(x), strict=True):
        assert_same_bytes(actual, e, "result")


def test_symbolic_training_step():
    operand = jax.ShapeDtypeStruct(export.symbolic_shape("m, 64"), jnp.float32)
    w = make("normal", (48, 64), "float32")

    def step(x, w):
        return jax.value_and_grad(lambda w: (jax_nvfp4.dot(x, w) ** 2).sum())(w)

    exported = export.export(jax.jit(step), disabled_checks=jax_nvfp4.export_checks())(operand, w)
    x = make("normal", (37, 64), "float32")
    for actual, e in zip(exported.call(x, w), jax.jit(step)(x, w), strict=True):
        np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-3)


def test_refusal_names_the_custom_call():
    """Without the exemption JAX refuses; the docstring of `export_checks` says what to pass."""
    with pytest.raises(ValueError, match="nvfp4_"):
        export.export(jax.jit(program))(jnp.zeros((32, 64), jnp.float32))


RUN_ON_CONTAINERS = """
import sys
import jax
import jax_nvfp4
program = jax.export.deserialize(open(sys.argv[1], "rb").read())
jax_nvfp4.save(sys.argv[3], program.call(jax_nvfp4.load(sys.argv[2])))
"""


@pytest.mark.parametrize("spec, axis", [(jax_nvfp4.NVFP4, -2), (NVFP4_2D, -1), (SWIZZLED, -1)], ids=str)
def test_containers_as_operands_and_results(spec, axis, tmp_path, run_script):
    """`spec` and `axis` travel with the program, which refuses a container of another meaning."""

    def requantize(t):
        return jax_nvfp4.quantize(jax_nvfp4.dequantize(t).T, spec, axis=axis)

    t = jax_nvfp4.quantize(make("normal", (32, 64), "bfloat16"), spec, axis=axis)
    exported = export.export(jax.jit(requantize), disabled_checks=jax_nvfp4.export_checks())(t)
    (tmp_path / "program").write_bytes(exported.serialize())
    jax_nvfp4.save(tmp_path / "t.npz", t)
    run_script(RUN_ON_CONTAINERS, *(tmp_path / name for name in ("program", "t.npz", "result.npz")))
    result, e = jax_nvfp4.load(tmp_path / "result.npz"), requantize(t)
    assert (result.spec, result.axis, result.shape) == (spec, axis, (64, 32))
    for actual, expected_bytes in zip(arrays(result), arrays(e), strict=True):
        assert_same_bytes(actual, expected_bytes, "result")
    with pytest.raises(ValueError, match="pytree|tree structure"):
        exported.call(t.T)


def test_symbolic_containers():
    """The check of a container holds for every size at once."""
    specs = (jax_nvfp4.NVFP4, NVFP4_2D, SWIZZLED)
    operand = jax.ShapeDtypeStruct(export.symbolic_shape("b, 16*m, 32*k"), jnp.float32)

    def round_trip(x):
        return [jax_nvfp4.dequantize(jax_nvfp4.quantize(x, spec), x.dtype) for spec in specs]

    exported = export.export(jax.jit(round_trip), disabled_checks=jax_nvfp4.export_checks())(operand)
    x = make("normal", (2, 48, 96), "float32")
    for actual, spec in zip(exported.call(x), specs, strict=True):
        assert_same_bytes(actual, jax_nvfp4.dequantize(jax_nvfp4.quantize(x, spec), x.dtype), str(spec))
