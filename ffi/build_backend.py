"""The build backend of pyproject.toml: scikit-build-core, and the CUDA packages where kernels are asked for.

A CPU-only build needs none of them, and static metadata cannot depend on this machine's GPUs.
"""

import os
import sys
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403

sys.path.append(str(Path(__file__).parents[1] / "jax_nvfp4" / "kernels"))
import families


def get_requires_for_build_wheel(config_settings=None):
    return build.get_requires_for_build_wheel(config_settings) + _cuda_requirements()


def get_requires_for_build_editable(config_settings=None):
    return build.get_requires_for_build_editable(config_settings) + _cuda_requirements()


def _cuda_requirements():
    return families.requirements(os.environ.get(families.VARIABLE, "native"))
