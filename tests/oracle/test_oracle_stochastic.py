"""Section 6: Philox, the counters, and the rounding rule."""

import numpy as np
import pytest

from jax_nvfp4.oracle import dequantize, e2m1, quantize, stochastic
from jax_nvfp4.oracle.philox import philox4x32
from jax_nvfp4.spec import NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make

KEY = (0x12345678, 0x9ABCDEF0)
GRID = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def magnitude_codes(q):
    return e2m1.unpack(q.codes) & 7


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
        ("3 5 1 0", "1 2", "32396848 770b5b04 4d9c0b64 dbe34b31"),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert_same_bytes(philox4x32(words(counter), words(key)), words(expected), "words")


def test_random_bytes_are_the_little_endian_words_of_the_block_counter():
    expected = bytes.fromhex("4868393204 5b0b77640b9c4d314be3db")
    columnwise = stochastic.random_bytes((6, 64), -2, (1, 2))
    assert columnwise[5, 48:].tobytes() == expected
    # The row direction differs in c2 alone.
    rowwise = stochastic.random_bytes((6, 64), -1, (1, 2))
    assert_same_bytes(rowwise[5, 48:].view("<u4"), philox4x32(words("3 5 0 0"), words("1 2")), "row direction")


def test_origin_is_in_elements_and_words_wrap():
    origin = np.array([7, 2**32 - 1, 2**32 - 16], np.uint32)
    rowwise = stochastic.random_bytes((2, 32), -1, KEY, origin).reshape(2, 2, 16).view("<u4")
    assert_same_bytes(rowwise[0, 0], philox4x32(words("0fffffff ffffffff 0 7"), np.array(KEY, np.uint32)), "first")
    assert_same_bytes(rowwise[1, 1], philox4x32(words("10000000 0 0 7"), np.array(KEY, np.uint32)), "row wraps")
    columnwise = stochastic.random_bytes((2, 16), -2, KEY, np.array([7, 48, 5], np.uint32)).view("<u4")
    assert_same_bytes(columnwise[1], philox4x32(words("3 6 1 7"), np.array(KEY, np.uint32)), "columnwise")


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_shard_with_its_origin_has_the_bits_of_the_whole(axis):
    x = make("normal", (3, 64, 96), "bfloat16")
    whole = quantize(x, axis=axis, key=KEY)
    for batch, row, column in np.ndindex(3, 2, 3):
        rows, columns = slice(32 * row, 32 * row + 32), slice(32 * column, 32 * column + 32)
        shard = quantize(
            x[batch, rows, columns], axis=axis, amax=whole.amax[batch], key=KEY, origin=(batch, 32 * row, 32 * column)
        )
        codes = e2m1.unpack(whole.codes[batch])
        expected = codes[rows, columns] if axis == -1 else codes[columns, rows]
        assert_same_bytes(e2m1.unpack(shard.codes), expected, f"shard {batch, row, column}")


def test_batch_elements_count_row_major_and_may_have_their_own_key():
    x = np.broadcast_to(make("normal", (16, 64), "float32"), (2, 3, 16, 64))
    keys = np.arange(12, dtype=np.uint32).reshape(2, 3, 2)
    shared, own = quantize(x, key=KEY), quantize(x, key=keys)
    for i, j in np.ndindex(2, 3):
        origin = (3 * i + j, 0, 0)
        assert_same_bytes(quantize(x[i, j], key=KEY, origin=origin).codes, shared.codes[i, j], f"shared key {i, j}")
        assert_same_bytes(quantize(x[i, j], key=keys[i, j], origin=origin).codes, own.codes[i, j], f"own key {i, j}")
    assert len({shared.codes[i].tobytes() for i in np.ndindex(2, 3)}) == 6


def test_known_answer_block():
    """Section 13, as block 3 of column 5."""
    bits = "bf4d bf33 bf1a bf00 becd be9a be4d bdcd 0000 3dcd 3e4d 3e9a 3ecd 3f00 3f1a 3f33"
    x = np.zeros((64, 6), np.float32)
    x[48:, 5] = (words(bits) << np.uint32(16)).view(np.float32)
    q = quantize(x, axis=-2, amax=2.5, key=(1, 2))
    assert q.codes[5, 24:].tobytes() == bytes.fromhex("ffde cd9b 1043 6577")
    assert q.scales.view(np.uint8)[5, 3] == 0x71


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("lower", range(7))
def test_every_random_byte_at_every_256th(lower, sign):
    """Of the 256 bytes exactly k round up k/256 of the way, so a grid value (k = 0) never moves."""
    lo, hi = GRID[lower], GRID[lower + 1]
    k = np.arange(256, dtype=np.float32)[:, None]
    x = sign * (np.float32(lo) + np.float32(hi - lo) * k / np.float32(256))
    codes = stochastic.encode(np.broadcast_to(x, (256, 256)), np.arange(256, dtype=np.uint8))
    up = np.arange(256) >= 256 - np.arange(256)[:, None]
    assert_same_bytes(codes, (lower + up + (0 if sign == 1 else 8)).astype(np.uint8), f"{lo} to {hi}")


def test_the_sum_with_the_byte_is_one_float32_addition():
    below = np.nextafter(np.float32(0.5 / 256), np.float32(0))  # 256 * fraction = 1 - 2^-24
    x = np.array([below, 0.5 * (1 - 2**-16) / 256], np.float32)
    assert stochastic.encode(x, np.full(2, 255, np.uint8)).tolist() == [1, 0]


def test_special_values():
    x = np.array([6, 6.1, 1e30, np.inf, -6, -np.inf, np.nan, -np.nan, -0.0, 0.0, -1e-40], np.float32)
    for byte in (0, 255):
        codes = stochastic.encode(x, np.full(x.shape, byte, np.uint8))
        assert codes.tolist() == [7, 7, 7, 7, 15, 15, 7, 7, 8, 0, 8]


def test_the_mean_is_the_value():
    """1.25 beside an anchor of 6.0, G = 2688."""
    x = np.full((256, 256), 1.25, np.float32)
    x[:, ::16] = 6
    y = dequantize(quantize(x, amax=2688.0, key=KEY), "float32")
    assert (y[:, ::16] == 6).all()
    draws = np.delete(y, np.s_[::16], axis=1)
    assert set(np.unique(draws)) == {1.0, 1.5}
    # Each of the 61440 draws has a standard deviation of 0.25.
    assert abs(draws.mean(dtype=np.float64) - 1.25) < 3 * 0.25 / np.sqrt(draws.size)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("family", FAMILIES)
def test_within_one_step_of_nearest_with_the_same_sign_and_scales(family, axis):
    x = make(family, (64, 64), "float32")
    nearest, random = quantize(x, axis=axis), quantize(x, axis=axis, key=KEY)
    assert_same_bytes(random.scales, nearest.scales, "scales")
    assert_same_bytes(e2m1.unpack(random.codes) & 8, e2m1.unpack(nearest.codes) & 8, "signs")
    step = magnitude_codes(random).astype(int) - magnitude_codes(nearest)
    assert np.abs(step).max() <= 1
    if family in ("normal", "uniform", "ties"):
        assert (step == 1).any() and (step == -1).any()


@pytest.mark.parametrize("axis", [-1, -2])
def test_reconstruction(axis):
    """Section 12."""
    x = make("normal", (256, 256), "float32")
    error = dequantize(quantize(x, axis=axis, key=KEY), "float32").astype(np.float64) - x
    assert 10 * np.log10((x.astype(np.float64) ** 2).sum() / (error**2).sum()) > 15
    assert abs(error.mean()) < 3 * error.std() / 256


def test_nan_poisons_its_block_only():
    x = np.ones((16, 48), np.float32)
    x[3, 20] = np.nan
    q = quantize(x, amax=6.0, key=KEY)
    poisoned = np.zeros((16, 48), bool)
    poisoned[3, 16:32] = True
    assert (e2m1.unpack(q.codes)[poisoned] == 7).all()
    assert (magnitude_codes(q)[~poisoned] == 7).all() and (q.scales.view(np.uint8) == 0x7F).sum() == 1


def test_keys_matter():
    x = make("normal", (64, 64), "bfloat16")
    first, again, other = (quantize(x, key=key).codes for key in (KEY, KEY, (KEY[0], KEY[1] + 1)))
    assert_same_bytes(first, again, "same key")
    assert np.mean(first != other) > 0.01


def test_bad_operands_are_refused():
    x = make("normal", (2, 16, 32), "float32")
    with pytest.raises(ValueError, match="never rounded stochastically"):
        quantize(x, NVFP4_2D, key=KEY)
    with pytest.raises(ValueError, match=r"key must have shape \(2,\) or \(2, 2\), got \(3,\)"):
        quantize(x, key=(1, 2, 3))
    with pytest.raises(ValueError, match=r"origin must have shape \(3,\), got \(2,\)"):
        quantize(x, key=KEY, origin=(0, 0))
    with pytest.raises(ValueError, match="starts inside a block: along axis -1"):
        quantize(x, key=KEY, origin=(0, 0, 8))
    with pytest.raises(TypeError, match="key must hold uint32 words, got float64"):
        quantize(x, key=(0.5, 1.0))
    with pytest.raises(ValueError, match="without a key"):
        quantize(x, NVFP4, origin=(0, 0, 0))
    with pytest.raises(ValueError, match="scope 'row' needs axis=-1"):
        quantize(x, QuantSpec(scope="row"), axis=-2, key=KEY)
