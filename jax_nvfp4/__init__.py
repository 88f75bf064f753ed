"""NVFP4 training for JAX: quantization as XLA custom calls, the same bits on CPU and GPU."""

from jax_nvfp4 import oracle
from jax_nvfp4.export import export_checks
from jax_nvfp4.io import load, save
from jax_nvfp4.ops.amax import amax
from jax_nvfp4.ops.dequantize import decode, dequantize
from jax_nvfp4.ops.grouped import grouped_amax, grouped_quantize, grouped_quantize_dual, pad_groups, unpad_groups
from jax_nvfp4.ops.padding import pad_to_blocks
from jax_nvfp4.ops.qdq import qdq
from jax_nvfp4.ops.quantize import quantize, quantize_dual
from jax_nvfp4.ops.swizzle import swizzle_scales, unswizzle_scales
from jax_nvfp4.products.dot import dot
from jax_nvfp4.products.grouped_dot import grouped_dot
from jax_nvfp4.products.grouped_matmul import grouped_matmul
from jax_nvfp4.products.matmul import block_scaled_matmul
from jax_nvfp4.sharding import max_over
from jax_nvfp4.spec import (
    MXFP8,
    MXFP8_TRAINING,
    NVFP4,
    NVFP4_2D,
    NVFP4_QAT,
    NVFP4_TRAINING,
    RHT,
    FourOverSix,
    QuantSpec,
    Recipe,
)
from jax_nvfp4.tensor import BlockScaled

__version__ = "0.1.0"

__all__ = [
    "MXFP8",
    "MXFP8_TRAINING",
    "NVFP4",
    "NVFP4_2D",
    "NVFP4_QAT",
    "NVFP4_TRAINING",
    "RHT",
    "BlockScaled",
    "FourOverSix",
    "QuantSpec",
    "Recipe",
    "amax",
    "block_scaled_matmul",
    "decode",
    "dequantize",
    "dot",
    "export_checks",
    "grouped_amax",
    "grouped_dot",
    "grouped_matmul",
    "grouped_quantize",
    "grouped_quantize_dual",
    "load",
    "max_over",
    "oracle",
    "pad_groups",
    "pad_to_blocks",
    "qdq",
    "quantize",
    "quantize_dual",
    "save",
    "swizzle_scales",
    "unpad_groups",
    "unswizzle_scales",
]
