"""The oracle against the output bytes of public reference implementations (see tests/golden/README.md)."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import Quantized, dequantize, e4m3, quantize, quantize_dual, swizzle_scales
from jax_nvfp4.spec import FourOverSix, QuantSpec
from jax_nvfp4.testing import assert_same_bytes

GOLDEN = Path(__file__).parent.parent / "golden"
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}
BLOCKS = {"1x16": (1, 16), "16x16": (16, 16)}


def load(file):
    with np.load(GOLDEN / file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    cases = json.loads(arrays["index"].tobytes())["cases"]
    return arrays, cases


def case_id(case):
    return "-".join([case["name"], *(str(value) for value in case["params"].values())])


TE, TE_CASES = load("te_nvfp4.npz")
DEQUANTIZE, DEQUANTIZE_CASES = load("te_dequant.npz")
AO, AO_ALL = load("ao_nvfp4.npz")
AO_CASES = [case for case in AO_ALL if not case["params"]["rht"]]
MX, MX_CASES = load("ao_mx.npz")


def test_every_case_is_selected():
    assert len(TE_CASES) == 332
    assert len(DEQUANTIZE_CASES) == 171
    assert (len(AO_ALL), len(AO_CASES)) == (175, 167)
    assert len(MX_CASES) == 54


def operand(arrays, case):
    return arrays[case["input"]].view(DTYPES[case["dtype"]])


def quant_spec(case):
    scope = {"tensor": "tensor", "batch": "tensor", "row": "row"}[case["params"]["scope"]]
    assert case["params"]["emax"] == 448 and not case["params"]["rht"]
    return QuantSpec(block=BLOCKS[case["params"]["block"]], scope=scope)


def compare(quantized, expected, direction):
    """Compares every role of one direction that the case stores; returns those roles."""
    actual = {
        f"{direction}_codes": quantized.codes,
        f"{direction}_scales": quantized.scales.view(np.uint8),
        f"{direction}_scales_swizzled": swizzle_scales(quantized.scales).view(np.uint8),
        f"{direction}_amax": quantized.amax.view(np.uint32),
    }
    for role in actual.keys() & expected.keys():
        assert actual[role].size == expected[role].size
        assert_same_bytes(actual[role].reshape(expected[role].shape), expected[role], role)
    return actual.keys() & expected.keys()


def check(arrays, case, given):
    x, spec = operand(arrays, case), quant_spec(case)
    expected = {role: arrays[key] for role, key in case["outputs"].items()}
    checked = compare(quantize(x, spec, amax=given), expected, "row")
    if any(role.startswith("col_") for role in expected):
        checked |= compare(quantize(x, spec, axis=-2, amax=given), expected, "col")
    assert checked == expected.keys()
    if spec.is_tile:
        row, column = quantize_dual(x, spec, amax=given)
        compare(row, expected, "row")
        compare(column, expected, "col")


@pytest.mark.parametrize("case", TE_CASES, ids=case_id)
def test_transformer_engine_quantize(case):
    check(TE, case, given=None)


@pytest.mark.parametrize("case", AO_CASES, ids=case_id)
def test_torchao_quantize(case):
    given = AO[case["given"]["amax"]].view(np.float32)
    x = operand(AO, case)
    check(AO, case, given=given.reshape(x.shape[:-2]))


@pytest.mark.parametrize("case", DEQUANTIZE_CASES, ids=case_id)
def test_transformer_engine_dequantize(case):
    params, given = case["params"], {role: DEQUANTIZE[key] for role, key in case["given"].items()}
    g = given["amax"].view(np.float32)
    dtype = DTYPES[params["out_dtype"]]
    choice = FourOverSix(emax=256) if params["emax"] == 256 else None
    t = Quantized(
        DEQUANTIZE[case["input"]],
        given["scales"].view(e4m3.DTYPE),
        g if params["scope"] == "row" else g.reshape(()),
        QuantSpec(scope=params["scope"], four_over_six=choice),
        -1,
    )
    y = dequantize(t, dtype)
    assert_same_bytes(y, DEQUANTIZE[case["outputs"]["y"]].view(dtype), "y")


@pytest.mark.parametrize("case", MX_CASES, ids=case_id)
def test_torchao_swizzle(case):
    directions = [role.removesuffix("_scales_swizzled") for role in case["outputs"] if role.endswith("_swizzled")]
    assert directions
    for direction in directions:
        swizzled = swizzle_scales(MX[case["outputs"][f"{direction}_scales"]])
        assert_same_bytes(swizzled.reshape(-1), MX[case["outputs"][f"{direction}_scales_swizzled"]], direction)
