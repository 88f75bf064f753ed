"""Measures the reciprocal of fast math on this machine's NVIDIA GPU (docs/numerics.md section 7).

`python bench/rcp_table.py` compares every mantissa with the table of the package and says what differs; `--write`
writes the table. Needs NumPy and the driver (libcuda), nothing else: the one instruction is handed over as PTX.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
from pathlib import Path

import numpy as np

FAST = Path(__file__).resolve().parents[1] / "jax_nvfp4" / "oracle" / "fast.py"
THREADS = 256
EXPONENTS = (1, 2, 64, 126, 127, 128, 200, 252)
"""Exponent fields for which the result must depend on the mantissa alone."""

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry reciprocals(.param .u64 out, .param .u32 first)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  .reg .f32 %f<3>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [first];
  add.u32 %r5, %r5, %r4;
  mov.b32 %f1, %r5;
  rcp.approx.ftz.f32 %f2, %f1;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd2, %rd2, %rd3;
  st.global.f32 [%rd2], %f2;
  ret;
}
"""


class Gpu:
    """One GPU with the kernel loaded, through the driver API."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module, self.kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self("cuModuleLoadData", ctypes.byref(module), PTX)
        self("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"reciprocals")
        name = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", name, len(name), device)
        self.name = name.value.decode()

    def __call__(self, function: str, *arguments) -> None:
        code = getattr(self.cuda, function)(*arguments)
        if code:
            raise RuntimeError(f"{function} failed with CUDA error {code}")

    def reciprocals(self, first: int, count: int) -> np.ndarray:
        """rcp.approx.ftz.f32 of `count` float32 numbers whose bits count up from `first`, a multiple of 256 of them."""
        memory, result = ctypes.c_uint64(), np.empty(count, np.float32)
        self("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(result.nbytes))
        start = ctypes.c_uint32(first)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(start))
        self("cuLaunchKernel", self.kernel, count // THREADS, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(result.ctypes.data), memory, ctypes.c_size_t(result.nbytes))
        self("cuMemFree_v2", memory)
        return result


def measure(gpu: Gpu, mantissas: int) -> np.ndarray:
    """int64 (2^23,): approximate minus correctly rounded reciprocal, in units of the last place.

    Raises:
        RuntimeError: the GPU does something else than section 7 says.
    """
    one = 127 * mantissas
    rounded = np.float32(1) / (np.arange(mantissas, dtype=np.int32) + np.int32(one)).view(np.float32)
    approximate = gpu.reciprocals(one, mantissas)
    corrections = approximate.view(np.int32).astype(np.int64) - rounded.view(np.int32)
    if np.abs(corrections).max() > 1:
        raise RuntimeError(
            f"a reciprocal is {np.abs(corrections).max()} units from the rounded one, expected at most 1"
        )
    for exponent in EXPONENTS:
        scaled = gpu.reciprocals(exponent * mantissas, mantissas)
        if not (scaled == np.ldexp(approximate.astype(np.float64), 127 - exponent)).all():
            raise RuntimeError(f"the result depends on more than the mantissa for exponent field {exponent}")
    if not np.isposinf(gpu.reciprocals(0, mantissas)).all():
        raise RuntimeError("zero or a subnormal number does not give Inf")
    above = gpu.reciprocals(255 * mantissas, THREADS)
    if above[0] != 0 or not np.isnan(above[1:]).all():
        raise RuntimeError("Inf does not give 0, or NaN not NaN")
    return corrections


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table of the package")
    arguments = parser.parse_args()
    # By path: the package itself imports JAX, which this does not need.
    spec = importlib.util.spec_from_file_location("fast", FAST)
    assert spec is not None and spec.loader is not None
    fast = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fast)

    gpu = Gpu()
    corrections = measure(gpu, fast.MANTISSAS)
    print(f"{gpu.name}: {np.count_nonzero(corrections)} of {corrections.size} reciprocals are not correctly rounded")
    if arguments.write:
        fast.TABLE.write_bytes(fast.pack(corrections.astype(np.int8)))
        print(f"wrote {fast.TABLE} ({fast.TABLE.stat().st_size} bytes)")
        return 0
    differ = np.count_nonzero(corrections != fast.corrections())
    print(f"{differ} differ from {fast.TABLE.name}")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
