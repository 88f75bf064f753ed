"""Products of quantized operands: `dot` follows a recipe forward and backward, `matmul` is one product."""
