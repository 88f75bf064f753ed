"""What went wrong for other people: one small test for each public report, named after it.

Reports about transformations, sharding, memory layouts and files are named where those are tested.
"""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, oracle
from jax_nvfp4.testing import E2M1_MIDPOINTS, E4M3_POSITIVE, assert_same_bytes, make


def scale_bytes(t):
    return np.asarray(t.scales).view(np.uint8)


def codes(t):
    return oracle.e2m1.unpack(np.asarray(t.codes))


@pytest.mark.parametrize("raw", [448, 449, 464, 464.1, 480, 1e4, np.inf])
def test_model_optimizer_1397_scale_above_448_saturates(raw):
    """Also ml_dtypes#400 and pytorch#178817: a cast to E4M3 that turns 464.1 into NaN."""
    x = np.full((1, 16), raw * 6, np.float32)
    t = jax_nvfp4.quantize(x, amax=2688.0)
    assert scale_bytes(t).tolist() == [[0x7E]]
    assert set(codes(t).flat) == {7}


def test_model_optimizer_1397_zero_block_has_a_zero_scale():
    """Also aiter#4289 and kernels-community#681: a scale of 1, an epsilon, or 0/0."""
    x = np.zeros((16, 32), np.float32)
    x[0, 16] = 1
    t = jax_nvfp4.quantize(x)
    assert not scale_bytes(t)[:, 0].any() and not codes(t)[:, :16].any()
    assert not np.asarray(jax_nvfp4.dequantize(t))[:, :16].any()
    assert_same_bytes(jax.grad(lambda x: jax_nvfp4.qdq(x).sum())(jnp.asarray(x)), np.ones_like(x), "gradient")


def test_flashinfer_3448_zero_tensor():
    """Also vllm#45212: 1/0 as the scale of a tensor."""
    t = jax_nvfp4.quantize(np.zeros((32, 64), np.float32))
    assert t.amax == 0 and not scale_bytes(t).any() and not codes(t).any()
    assert_same_bytes(jax_nvfp4.dequantize(t, jnp.float32), np.zeros((32, 64), np.float32), "values")


def test_ao_4598_small_block_underflows_as_documented():
    """Section 2: the scale is 0, codes are +-6, and the block dequantizes to signed zeros."""
    x = np.full((1, 32), 1.0, np.float32)
    x[0, 16:] = 1e-6
    x[0, 17] = -1e-6
    t = jax_nvfp4.quantize(x)
    assert scale_bytes(t).tolist() == [[0x7E, 0]]
    assert set(codes(t)[0, 16:]) == {7, 15} and codes(t)[0, 17] == 15
    y = np.asarray(jax_nvfp4.dequantize(t, jnp.float32))[0, 16:]
    assert not y.any() and np.signbit(y).tolist() == [False, True] + [False] * 14


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arch_com_905_products_by_the_reciprocal_next_to_ties(dtype):
    """Also TransformerEngine#2411 and vllm#46031: x/s and x*(1/s) differ only next to ties, for some scales."""
    ties = E2M1_MIDPOINTS[:, None] * np.array([1 - 2**-23, 1, 1 + 2**-23], np.float32)
    elements = np.tile(np.pad(ties.reshape(-1), (0, 9)), (len(E4M3_POSITIVE), 1)).reshape(-1, 2, 15)
    blocks = np.concatenate([np.full((*elements.shape[:-1], 1), 6, np.float32), elements], -1)
    x = (blocks * E4M3_POSITIVE[:, None, None]).reshape(len(E4M3_POSITIVE), 32).astype(dtype)
    t, expected = jax_nvfp4.quantize(x, amax=2688.0), oracle.quantize(x, amax=2688.0)
    assert_same_bytes(t.scales, expected.scales, "scales")
    assert_same_bytes(t.codes, expected.codes, "codes")
    if dtype == "float32":
        assert len(np.unique(scale_bytes(t))) == 126


def test_arch_com_905_witness():
    x = np.full((1, 16), 0.02392577938735485, np.float32)
    x[0, 0] = 6 * 0.013671875
    t = jax_nvfp4.quantize(x, amax=2688.0)
    assert set(codes(t)[0, 1:]) == {4}  # 2.0; division by the scale gives 1.5


def test_atom_2292_negative_zero_keeps_its_sign():
    """Also tt-metal#47219: two tables that disagree on the value of code 8."""
    x = np.zeros((1, 16), np.float32)
    x[0, :4] = 1.0, -0.0, -1e-9, -0.03
    t = jax_nvfp4.quantize(x)
    assert codes(t)[0, :5].tolist() == [7, 8, 8, 8, 0]
    y = np.asarray(jax_nvfp4.dequantize(t, jnp.float32))
    assert y.view(np.uint32)[0, 1:5].tolist() == [0x80000000] * 3 + [0]


@pytest.mark.parametrize("maybe_jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("spec", [NVFP4, NVFP4_2D], ids=lambda spec: str(spec.block))
def test_ao_4852_nan_is_not_dropped(maybe_jit, spec):
    """NaN in the scope of a computed amax poisons all of it, with a given amax only its block."""
    x = make("normal", (32, 48), "bfloat16")
    x[20, 20] = np.nan
    t = maybe_jit(lambda x: jax_nvfp4.quantize(x, spec))(x)
    assert np.asarray(t.amax).view(np.uint32) == 0x7FC00000
    assert (scale_bytes(t) == 0x7F).all() and (codes(t) == 7).all()
    t = maybe_jit(lambda x: jax_nvfp4.quantize(x, spec, amax=4.0))(x)
    poisoned = spec.block[0]  # rows, each with a scale of its own
    assert (scale_bytes(t) == 0x7F).sum() == poisoned
    assert (codes(t)[20, 16:32] == 7).all()
    clean = jax_nvfp4.quantize(np.where(np.isnan(x), 0, x), spec, amax=4.0)
    assert (codes(t) != codes(clean)).sum() <= poisoned * spec.facts.block


def test_reduce_precision_of_the_largest_scale():
    """XLA's reduce_precision(x, 4, 3) gives NaN from 248 on."""
    x = make("normal", (16, 64), "float32")
    t = jax_nvfp4.quantize(x)
    row, column = np.argwhere(np.abs(x) == np.abs(x).max())[0]
    assert scale_bytes(t)[row, column // t.spec.facts.block] == 0x7E


def test_vllm_37135_float16_at_both_ends_of_its_range():
    """Also vllm#34577: float16 that overflows, or underflows, before its scale is applied."""
    x = np.full((1, 32), 65504, np.float16)
    x[0, 16:] = 6e-8
    t = jax_nvfp4.quantize(x)
    assert t.amax == 65504 and t.amax.dtype == jnp.float32
    assert_same_bytes(t.codes, oracle.quantize(x).codes, "codes")
    y = jax_nvfp4.dequantize(t, jnp.float16)
    assert np.isfinite(np.asarray(y)).all() and y[0, 0] == 65504


def test_transformer_engine_3281_stochastic_rounding():
    """Also #2255: gradients of all zeros. One step around nearest, the sign kept, no bias (section 12)."""
    x = np.full((4096, 16), 1.25, np.float32)
    x[:, 0] = 6.0
    x[::2] *= -1
    t = jax_nvfp4.quantize(x, amax=2688.0, key=jax.random.key(0))
    assert set(scale_bytes(t).flat) == {0x38}
    y = np.abs(np.asarray(jax_nvfp4.dequantize(t, jnp.float32)))
    assert (y[:, 0] == 6).all() and set(y[:, 1:].flat) == {1.0, 1.5}
    assert abs(y[:, 1:].mean() - 1.25) < 0.01
    assert (np.signbit(np.asarray(jax_nvfp4.dequantize(t))) == np.signbit(x)).all()

    x = make("normal", (256, 256), "float32")
    nearest, stochastic = (codes(jax_nvfp4.quantize(x, key=key)) for key in (None, jax.random.key(0)))
    assert (nearest >> 3 == stochastic >> 3).all()
    assert np.abs((nearest & 7).astype(int) - (stochastic & 7)).max() == 1
    y = np.asarray(jax_nvfp4.dequantize(jax_nvfp4.quantize(x, key=jax.random.key(0)), jnp.float32))
    assert 10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()) > 15


@pytest.mark.skipif(jax.device_count() < 2, reason="one device")
def test_cupy_5795_any_device_first():
    """Also the kernel-loading race of CUTLASS 4.4.2: a library that works on device 0 only."""
    x = make("normal", (64, 80), "bfloat16")  # a shape of its own, so that nothing is compiled yet
    expected = oracle.quantize(x)
    last, first = jax.devices()[-1], jax.devices()[0]

    def on(device):
        with jax.default_device(device):
            t = jax_nvfp4.quantize(jnp.asarray(x))
            assert t.codes.devices() == {device}
            assert_same_bytes(t.codes, expected.codes, str(device))
            assert_same_bytes(t.scales, expected.scales, str(device))

    on(last)
    on(first)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(on, [last, first] * 4))


def test_transformer_engine_64_bit_types():
    """With 64-bit types nothing becomes float64, and Python and NumPy scalars mean the same."""
    x = make("normal", (32, 64), "float32")
    expected = jax_nvfp4.quantize(x, amax=3.5, key=jax.random.key(0))
    with jax.enable_x64(True):
        for g in (3.5, np.float64(3.5), np.float32(3.5)):
            t = jax_nvfp4.quantize(x, amax=g, key=jax.random.key(0))
            assert_same_bytes(t.codes, expected.codes, "codes")
            assert_same_bytes(t.scales, expected.scales, "scales")
        with pytest.raises(TypeError, match="amax must be float32, got float64"):
            jax_nvfp4.quantize(x, amax=np.array(3.5))
        with pytest.raises(TypeError, match="got float64: cast it"):
            jax_nvfp4.quantize(x.astype(np.float64))
        results = jax.vjp(lambda x: jax_nvfp4.dot(x, x, key=jax.random.key(0)), jnp.asarray(x))
        for array in (jax_nvfp4.qdq(x), jax_nvfp4.amax(x), results[0], *results[1](results[0])):
            assert array.dtype == jnp.float32
