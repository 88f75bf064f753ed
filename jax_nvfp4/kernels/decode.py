"""decode: codes and block scales to floats, without the amax (contract section 8): dequantize with less to read."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from jax_nvfp4.kernels import dequantize


@cute.jit
def launch(
    stream: cuda.CUstream,
    codes: cute.Tensor,
    block_scales: cute.Tensor,
    y: cute.Tensor,
    batch: Int64,
    rows: Int64,
    columns: Int64,
    variant: cutlass.Constexpr,
):
    """Decode `batch` matrices of (rows, columns). The arguments are those of `dequantize.launch`."""
    dequantize.launch(stream, codes, block_scales, None, y, batch, rows, columns, Int32(0), Float32(0), variant)


def arguments(variant) -> tuple:
    """Fake arguments of `launch`, after the stream, for one variant."""
    codes, block_scales, _, y, *sizes, _, _ = dequantize.arguments(variant)
    return codes, block_scales, y, *sizes
