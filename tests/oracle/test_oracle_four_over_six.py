"""Section 5: both candidates, their errors in every mode, and what a tile decides once."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import dequantize, e2m1, e4m3, four_over_six, intermediates, nvfp4, qdq, quantize, quantize_dual
from jax_nvfp4.spec import NVFP4, NVFP4_2D, FourOverSix, QuantSpec
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make

MODES = [
    FourOverSix(*knobs)
    for knobs in itertools.product(("mae", "mse", "abs_max"), ("exact", "fp16"), ("sequential", "tree"), (448, 256))
]
KNOWN = "bf4d bf33 bf1a bf00 becd be9a be4d bdcd 0000 3dcd 3e4d 3e9a 3ecd 3f00 3f1a 3f33"
NEAR_TIE = "be6e bf7a bfa9 3f9e c023 bf09 bf23 be34 beb2 3fdf bf83 3e86 bf9e be29 3f9a 3ea7"
F = np.float32


def bf16(text):
    return np.array([int(word, 16) for word in text.split()], np.uint16).view(ml_dtypes.bfloat16)


def spec_of(choice, block=(1, 16), scope="tensor"):
    return QuantSpec(block=block, scope=scope, four_over_six=choice)


def scale_bytes(q):
    return q.scales.view(np.uint8)


def mode_id(choice):
    return f"{choice.error}-{choice.arithmetic}-{choice.order}-{choice.emax}"


def test_default():
    assert FourOverSix() == FourOverSix("mae", "exact", "sequential", 256)
    assert spec_of(FourOverSix()).emax == 256 and NVFP4.emax == 448


@pytest.mark.parametrize("choice", MODES, ids=mode_id)
def test_known_answer_block(choice):
    q = quantize(bf16(KNOWN)[None], spec_of(choice), amax=2.5)
    if choice.error == "abs_max" and choice.emax == 256:
        # The largest differences are 0.08203 with 6 and 0.08594 with 4.
        assert q.codes.tobytes() == bytes.fromhex("ff ee cd ab 20 43 65 76") and scale_bytes(q).tolist() == [[0x6A]]
        return
    assert q.codes.tobytes() == bytes.fromhex("ee dd bc 9a 10 32 54 65")
    assert scale_bytes(q).tolist() == [[0x75 if choice.emax == 448 else 0x6F]]


@pytest.mark.parametrize(
    "order, scale, codes", [("sequential", 0x77, "b9 4c ae 9a 59 1b 9c 14"), ("tree", 0x72, "c9 5d bf 9b 6a 1c 9d 25")]
)
def test_the_order_of_the_sum_decides_a_near_tie(order, scale, codes):
    q = quantize(bf16(NEAR_TIE)[None], spec_of(FourOverSix(order=order)), amax=4.0)
    assert q.codes.tobytes() == bytes.fromhex(codes) and scale_bytes(q).tolist() == [[scale]]


def one_block(x, g, choice):
    """The page, one element at a time in Python: errors of 6 and of 4, then the chosen scale byte and codes."""
    emax = F(choice.emax)
    s_global = min(F(6) * emax / F(g), nvfp4.FLT_MAX)
    d = F(1) / s_global
    base = F(np.abs(x).max()) / F(6) * s_global
    results = []
    for p in (min(base, F(448)), min(base * F(1.5), F(448))):
        scale = e4m3.encode(np.array([p]))
        unit = F(scale.astype(F)[0])
        e = min(F(1) / (unit * d), nvfp4.FLT_MAX) if unit * d > 0 else nvfp4.FLT_MAX
        codes = [e2m1.encode(np.array([v * e]))[0] for v in x]
        terms = []
        for v, code in zip(x, codes, strict=True):
            product = F(e2m1.decode(np.array([code]))[0]) * unit
            if choice.arithmetic == "exact":
                difference = product * F(g) / (F(6) * emax) - v
            else:
                difference = product - v * s_global
            terms.append(difference * difference if choice.error == "mse" else abs(difference))
        if choice.error == "abs_max":
            error = max(terms)
        elif choice.order == "sequential":
            error = F(0)
            for term in terms:
                error = error + term
        else:
            lanes = list(terms)
            for offset in (8, 4, 2, 1):
                lanes = [lanes[i] + lanes[i + offset] for i in range(offset)]
            error = lanes[0]
        results.append((error, scale.view(np.uint8)[0], codes))
    return results


@np.errstate(over="ignore", divide="ignore")
@pytest.mark.parametrize("choice", MODES, ids=mode_id)
def test_every_mode_element_by_element(choice):
    x = make("normal", (12, 16), "bfloat16", seed=5).astype(F)
    steps = intermediates(x, spec_of(choice, scope="row"))
    for row in range(len(x)):
        six, four = one_block(x[row], np.abs(x[row]).max() * F(1), choice)
        assert steps.errors[0][row, 0] == six[0] and steps.errors[1][row, 0] == four[0], row
        chosen = four if four[0] < six[0] else six
        assert steps.s.view(np.uint8)[row, 0] == chosen[1] and steps.codes[row].tolist() == chosen[2]


def test_every_knob_changes_some_decision():
    """A knob that is ignored would leave these bytes alone."""
    x = make("normal", (512, 512), "bfloat16")
    default = scale_bytes(quantize(x, spec_of(FourOverSix(emax=448))))
    for choice in (
        FourOverSix("mse", emax=448),
        FourOverSix("abs_max", emax=448),
        FourOverSix(arithmetic="fp16", emax=448),
    ):
        assert (scale_bytes(quantize(x, spec_of(choice))) != default).any(), choice
    picked_four = default != scale_bytes(quantize(x))
    assert 0.1 < picked_four.mean() < 0.9


@pytest.mark.full
def test_the_order_changes_few_decisions():
    x = make("normal", (1024, 1024), "bfloat16")
    specs = (spec_of(FourOverSix(order=order, emax=448)) for order in ("sequential", "tree"))
    sequential, tree = (scale_bytes(quantize(x, spec)) for spec in specs)
    assert 0 < np.mean(sequential != tree) < 1e-3


def test_the_amax_is_divided_first():
    """Where the standard scale rounds once, with other bytes for G = 7.875 (section 2)."""
    x = np.zeros((1, 32), ml_dtypes.bfloat16)
    x[0, 0], x[0, 16] = 7.875, bf16("3f99")[0]
    steps = intermediates(x, spec_of(FourOverSix(emax=448)))
    base = F(x[0, 16]) / F(6) * (F(2688) / F(7.875))
    terms = four_over_six.block_terms(steps.B, steps.S)
    assert terms[0][0, 1] == base and e4m3.encode(terms[0]).view(np.uint8)[0, 1] == 0x68


@pytest.mark.parametrize("emax, four", [(448, 0x7E), (256, 0x7C)])
def test_the_scale_of_four_is_clamped_at_448_for_both_maxima(emax, four):
    """6 * 256 / G * B / 6 = 256 for the largest block: 384 fits in E4M3 beyond Emax; from 448 it is clamped."""
    x = np.full((1, 16), 1.0, np.float32)
    steps = intermediates(x, spec_of(FourOverSix(emax=emax)))
    p = four_over_six.block_terms(steps.B, steps.S)
    assert e4m3.encode(p[1]).view(np.uint8).tolist() == [[four]]
    assert p[1] == (448 if emax == 448 else 384)


def test_ties_and_nan_pick_six():
    assert not four_over_six.picks_four(F([1, np.nan, 1, np.nan]), F([1, 1, np.nan, np.nan])).any()
    assert four_over_six.picks_four(F([2, np.inf]), F([1, 2])).all()
    six = quantize(np.full((1, 16), 6, np.float32), spec_of(FourOverSix()), amax=6.0)
    assert scale_bytes(six).tolist() == [[0x78]] and set(e2m1.unpack(six.codes)[0]) == {7}  # both errors are 0
    # 4.5 / 6 * 4 is on the grid, 4.5 is not.
    four = quantize(F([[6, 4.5] + [4.5] * 14]), spec_of(FourOverSix()), amax=6.0)
    assert set(e2m1.unpack(four.codes)[0]) == {5, 6}


@pytest.mark.parametrize("family", ["nan_block", "nan_everywhere"])
def test_nan_poisons_as_everywhere(family):
    x = make(family, (32, 48), "float32")
    for block in ((1, 16), (16, 16)):
        q = quantize(x, spec_of(FourOverSix(), block))
        assert (scale_bytes(q) == 0x7F).all() and (q.codes == 0x77).all()
        given = quantize(x, spec_of(FourOverSix(), block), amax=4.0)
        assert (scale_bytes(given) == 0x7F).any() and (family == "nan_everywhere" or (scale_bytes(given) != 0x7F).any())


@pytest.mark.parametrize("choice", MODES, ids=mode_id)
def test_a_tile_decides_once_from_its_row_strips(choice):
    x = make("normal", (48, 80), "float32")
    steps = intermediates(x, spec_of(choice, (16, 16)))
    row, column = quantize_dual(x, spec_of(choice, (16, 16)))
    for i, j in np.ndindex(3, 5):
        tile = np.s_[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
        strips = np.s_[16 * i : 16 * i + 16, j]
        # With the amax of the tile in every strip a row is a 1x16 problem, but for the amax of its block.
        errors = []
        for k in (0, 1):
            p = four_over_six.block_terms(steps.B[strips][:1], steps.S)[k]
            scales = e4m3.encode(p)
            unit = scales.astype(F)
            e = nvfp4.element_scale(scales, steps.D)
            codes = e2m1.encode(x[tile] * e.reshape(1, 1))
            difference = four_over_six.differences(x[tile], codes, unit.reshape(1, 1), steps.S, steps.G, choice)
            of_strip = four_over_six.strip_errors(difference, choice)[:, 0]
            lanes = list(of_strip)
            for offset in (8, 4, 2, 1):
                lanes = [lanes[n] + lanes[n + offset] for n in range(offset)]
            errors.append(lanes[0])
            assert (steps.errors[k][strips] == lanes[0]).all()
        assert len(set(scale_bytes(row)[strips].tolist())) == 1
    codes = e2m1.unpack(row.codes)
    assert_same_bytes(e2m1.unpack(column.codes), codes.T, "codes")
    tiles = scale_bytes(row)[::16]
    assert_same_bytes(scale_bytes(column), np.repeat(tiles.T, 16, axis=0), "scales")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_qdq_and_columns_and_batch(family, dtype):
    x = make(family, (2, 32, 48), dtype)
    spec = spec_of(FourOverSix(error="mse", order="tree"))
    q = quantize(x, spec)
    assert_same_bytes(qdq(x, spec), dequantize(q, dtype), "qdq")
    columns = quantize(np.ascontiguousarray(np.swapaxes(x, -1, -2)), spec, axis=-2)
    for name in ("codes", "scales"):
        assert_same_bytes(getattr(columns, name), getattr(q, name), name)
        assert_same_bytes(getattr(q, name)[1], getattr(quantize(x[1], spec), name), name)


@pytest.mark.parametrize("error", ["mae", "mse"])
def test_the_error_falls(error):
    x = make("normal", (128, 128), "float32")

    def mean_error(y):
        difference = np.abs(y.astype(np.float64) - x)
        return (difference if error == "mae" else difference**2).mean()

    searched, standard = (mean_error(qdq(x, spec)) for spec in (spec_of(FourOverSix(error, emax=448)), NVFP4))
    assert searched < 0.97 * standard
    tiles = spec_of(FourOverSix(error, emax=448), (16, 16))
    assert mean_error(qdq(x, tiles)) <= mean_error(qdq(x, NVFP4_2D))


def test_dequantize_uses_its_own_maximum():
    x = make("normal", (32, 48), "float32")
    y = qdq(x, spec_of(FourOverSix(emax=256)))
    assert np.abs(y - x).max() < 0.5 and np.isfinite(y).all()
    assert_same_bytes(
        nvfp4.block_factor(np.ones(1, e4m3.DTYPE), F(1), 256).view(np.uint32), np.uint32([0x3A2AAAAB]), "1/1536"
    )


def test_what_is_refused():
    x = make("normal", (32, 32), "bfloat16")
    with pytest.raises(ValueError, match="four-over-six is never rounded stochastically"):
        quantize(x, spec_of(FourOverSix()), key=(1, 2))
    with pytest.raises(ValueError, match="scope 'row' needs axis=-1"):
        quantize(x, spec_of(FourOverSix(), scope="row"), axis=-2)
    for wrong in ({"error": "rmse"}, {"arithmetic": "fp32"}, {"order": "pairwise"}, {"emax": 128}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
            FourOverSix(**wrong)
    with pytest.raises(ValueError, match="four_over_six must be a jax_nvfp4.FourOverSix or None"):
        QuantSpec(four_over_six=True)
