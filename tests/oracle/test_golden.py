"""The oracle against the output bytes of public reference implementations (see tests/golden/README.md)."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import (
    Quantized,
    dequantize,
    e4m3,
    grouped_quantize_dual,
    operations,
    quantize,
    quantize_dual,
    swizzle_scales,
)
from jax_nvfp4.spec import NVFP4, RHT, FourOverSix, QuantSpec
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
GROUPED_CASES = [case for case in AO_ALL if case["params"]["rht"]]
TE_RHT, TE_RHT_CASES = load("te_rht.npz")
AO_RHT, AO_RHT_CASES = load("ao_rht.npz")
RHT_CASES = [(TE_RHT, case) for case in TE_RHT_CASES] + [(AO_RHT, case) for case in AO_RHT_CASES]
SEARCH, SEARCH_CASES = load("te_four_over_six.npz")
MX, MX_CASES = load("ao_mx.npz")


def test_every_case_is_selected():
    assert len(TE_CASES) == 332
    assert len(DEQUANTIZE_CASES) == 171
    assert (len(AO_ALL), len(AO_CASES), len(GROUPED_CASES)) == (175, 167, 8)
    assert (len(TE_RHT_CASES), len(AO_RHT_CASES)) == (78, 73)
    assert len(SEARCH_CASES) == 1416
    assert len(MX_CASES) == 54


def operand(arrays, case):
    return arrays[case["input"]].view(DTYPES[case["dtype"]])


def outputs(arrays, case):
    return {role: arrays[key] for role, key in case["outputs"].items()}


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
    }
    if quantized.amax is None:
        actual[f"{direction}_data"] = quantized.codes.view(np.uint8)
    else:
        actual[f"{direction}_amax"] = np.ascontiguousarray(quantized.amax).view(np.uint32)
    for role in actual.keys() & expected.keys():
        assert actual[role].size == expected[role].size
        assert_same_bytes(actual[role].reshape(expected[role].shape), expected[role], role)
    return actual.keys() & expected.keys()


def check(arrays, case, given):
    x, spec = operand(arrays, case), quant_spec(case)
    expected = outputs(arrays, case)
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


@pytest.mark.parametrize("arrays, case", RHT_CASES, ids=lambda value: case_id(value) if "name" in value else "")
def test_hadamard_transform(arrays, case):
    x, rht, expected = operand(arrays, case), RHT(case["params"]["sign_mask"]), outputs(arrays, case)
    row, column = quantize_dual(x, col_spec=QuantSpec(rht=rht))
    checked = compare(row, expected, "row") | compare(column, expected, "col")
    if "rht" in expected:
        y = operations.operand(x, QuantSpec(rht=rht), -2).astype(ml_dtypes.bfloat16)
        assert_same_bytes(y.view(np.uint16), expected["rht"], "transform")
        checked |= {"rht"}
    assert checked == expected.keys()


@pytest.mark.parametrize("case", GROUPED_CASES, ids=case_id)
def test_torchao_groups(case):
    x, expected = operand(AO, case), outputs(AO, case)
    given = (x, AO[case["given"]["group_sizes"]], NVFP4)
    rht = RHT(case["params"]["sign_mask"])
    row, column = grouped_quantize_dual(*given, col_spec=QuantSpec(rht=rht))
    # Columnwise swizzled scales restart with every group, so they are compared below.
    columns = {role: array for role, array in expected.items() if role != "col_scales_swizzled"}
    checked = compare(row, expected, "row") | compare(column, columns, "col")
    swizzled = grouped_quantize_dual(*given, col_spec=QuantSpec(rht=rht, scale_layout="swizzled"))[1]
    assert_same_bytes(swizzled.scales.view(np.uint8).reshape(-1), expected["col_scales_swizzled"], "swizzled")
    assert checked | {"col_scales_swizzled"} == expected.keys()


SEARCH_MODES = sorted({tuple(case["params"].values())[2:] for case in SEARCH_CASES})


@pytest.mark.parametrize("mode", SEARCH_MODES, ids=lambda mode: "-".join(map(str, mode)))
def test_four_over_six(mode):
    cases = [case for case in SEARCH_CASES if tuple(case["params"].values())[2:] == mode]
    block, error, arithmetic, order, emax, scope = mode
    choice = FourOverSix(error, arithmetic, order, emax)
    spec = QuantSpec(block=BLOCKS[block], scope=scope, four_over_six=choice)
    for case in cases:
        x, expected = operand(SEARCH, case), outputs(SEARCH, case)
        checked = compare(quantize(x, spec), expected, "row")
        if any(role.startswith("col_") for role in expected):
            checked |= compare(quantize(x, spec, axis=-2), expected, "col")
        assert checked == expected.keys(), case["name"]


@pytest.mark.parametrize("case", MX_CASES, ids=case_id)
def test_torchao_mxfp8(case):
    x, expected = operand(MX, case), outputs(MX, case)
    spec = QuantSpec("mxfp8", scale_rounding=case["params"]["scale_mode"])
    checked = compare(quantize(x, spec), expected, "row")
    if any(role.startswith("col_") for role in expected):
        checked |= compare(quantize(x, spec, axis=-2), expected, "col")
    assert checked == expected.keys()


@pytest.mark.parametrize("case", MX_CASES, ids=case_id)
def test_torchao_swizzle(case):
    directions = [role.removesuffix("_scales_swizzled") for role in case["outputs"] if role.endswith("_swizzled")]
    assert directions
    for direction in directions:
        swizzled = swizzle_scales(MX[case["outputs"][f"{direction}_scales"]])
        assert_same_bytes(swizzled.reshape(-1), MX[case["outputs"][f"{direction}_scales_swizzled"]], direction)
