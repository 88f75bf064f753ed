"""Element codes, packing, swizzle and MXFP8 against the libraries that serve and train with these formats.

Runs only where the extra `parity` is installed, as CI does.
"""

import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import MXFP8, oracle
from jax_nvfp4.oracle import e2m1, swizzle_scales, unswizzle_scales
from jax_nvfp4.testing import assert_same_bytes, make
from jax_nvfp4.testing.cases import MX_FLOOR, MX_SWIZZLED

torch, *_ = map(pytest.importorskip, ("torch", "torchao", "compressed_tensors"))


def unpacked_codes():
    """Every ordered pair of codes."""
    return np.stack(np.divmod(np.arange(256, dtype=np.uint8), np.uint8(16)), -1).reshape(16, 32)


@pytest.mark.parametrize("shape", [(1, 1), (33, 3), (128, 4), (201, 10), (256, 8)])
def test_torchao_to_blocked(shape):
    from torchao.prototype.mx_formats import utils

    scales = np.random.default_rng(0).integers(1, 256, shape, np.uint8)
    blocked = utils.to_blocked(torch.from_numpy(scales)).numpy()
    swizzled = swizzle_scales(scales)
    assert_same_bytes(swizzled.reshape(-1), blocked.reshape(-1), "to_blocked")
    back = utils.from_blocked(torch.from_numpy(swizzled.reshape(-1)), *shape).numpy()
    assert_same_bytes(unswizzle_scales(swizzled, shape), back, "from_blocked")


def test_torchao_e2m1_and_packing():
    from torchao.prototype.mx_formats import kernels

    x = np.concatenate([make(family, (64, 64), "float32") * 3 for family in ("normal", "uniform", "zeros", "tiny")])
    x = np.concatenate([x, (make("ties", (64, 64), "float32") / 448).clip(-7, 7)])
    codes = kernels.f32_to_f4_unpacked(torch.from_numpy(x)).numpy()
    assert_same_bytes(e2m1.encode(x), codes, "codes")
    assert_same_bytes(e2m1.pack(codes), kernels.pack_uint4(torch.from_numpy(codes)).numpy(), "packed")
    every = np.arange(16, dtype=np.uint8)
    assert_same_bytes(e2m1.decode(every), kernels.f4_unpacked_to_f32(torch.from_numpy(every)).numpy(), "values")


def test_compressed_tensors_packing():
    from compressed_tensors.compressors.nvfp4 import helpers

    codes = unpacked_codes()
    values = torch.from_numpy(e2m1.decode(codes))
    packed = helpers.pack_fp4_to_uint8(values.to(torch.bfloat16)).numpy()
    assert_same_bytes(e2m1.pack(codes), packed, "packed")
    unpacked = helpers.unpack_fp4_from_uint8(torch.from_numpy(packed), *codes.shape, dtype=torch.float32).numpy()
    assert_same_bytes(e2m1.decode(e2m1.unpack(packed)), unpacked, "unpacked")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("spec", [MXFP8, MX_FLOOR, MX_SWIZZLED], ids=["rceil", "floor", "rceil_swizzled"])
def test_torchao_to_mx(spec, dtype):
    """On blocks whose scale is normal and finite: torchao 0.18 is wrong on others (docs/numerics.md section 8)."""
    families = ("normal", "uniform", "block_spread", "zeros", "outlier", "ties", "order_sensitive", "dtype_max", "huge")
    x = np.concatenate([make(family, (96, 512), dtype) for family in families])
    if dtype == "bfloat16":
        every = np.resize(np.arange(0x0480, 0x7F80, dtype=np.uint16), 1 << 15).view(dtype)
        alone = np.zeros((every.size, 32), dtype)
        alone[np.arange(every.size), np.arange(every.size) % 32] = every
        x = np.concatenate([x, alone.reshape(-1, 512)])
    check_to_mx(x, spec)
    check_to_mx(np.ascontiguousarray(x.T), spec)


def check_to_mx(x, spec):
    """Rows against theirs, columns against theirs of the transpose; the oracle and the operation."""
    from torchao.prototype.mx_formats import mx_tensor

    given = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype != np.float32 else torch.from_numpy(x)
    rounding = mx_tensor.ScaleCalculationMode[spec.scale_rounding.upper()]
    swizzled = spec.scale_layout == "swizzled"
    scales, codes = mx_tensor.to_mx(given, torch.float8_e4m3fn, 32, rounding, is_swizzled_scales=swizzled)
    transposed = np.ascontiguousarray(x.T)
    for q in (
        oracle.quantize(x, spec),
        jax_nvfp4.quantize(x, spec),
        jax_nvfp4.quantize_dual(x, spec)[0],
        jax_nvfp4.quantize_dual(transposed, spec)[1],
    ):
        for what, ours, theirs in (("codes", q.codes, codes), ("scales", q.scales, scales)):
            theirs = theirs.view(torch.uint8).numpy().reshape(ours.shape)
            assert_same_bytes(np.asarray(ours).view(np.uint8), theirs, what)
