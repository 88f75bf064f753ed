"""GPU kernels in CuTe DSL, compiled ahead of time by `aot.py` for everything listed in `variants.py`."""
