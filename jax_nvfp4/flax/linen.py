"""NVFP4 products for Flax Linen layers: `nn.Dense(features, dot_general_cls=DotGeneral)`."""

from __future__ import annotations

import jax

from jax_nvfp4.flax import dot_general, without_flax
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe

try:
    from flax import linen as nn
except Exception as error:
    raise without_flax(__name__, error) from error


class DotGeneral(nn.Module):
    """The `dot_general` of `nn.Dense` and `nn.DenseGeneral`.

    With an rng collection "sr", as in `model.apply(variables, x, rngs={"sr": key})`, gradients are rounded
    stochastically; without one, to nearest. Give each step a key of its own: the same key repeats the same rounding.

    Attributes:
        recipe: which operands are quantized, and how. For another than the default,
            `dot_general_cls=functools.partial(DotGeneral, recipe=NVFP4_QAT)`.
    """

    recipe: Recipe = NVFP4_TRAINING

    @nn.compact
    def __call__(
        self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, *, out_sharding=None
    ) -> jax.Array:
        """See `jax_nvfp4.flax.dot_general`."""
        return dot_general(
            lhs,
            rhs,
            dimension_numbers,
            precision,
            preferred_element_type,
            out_sharding=out_sharding,
            recipe=self.recipe,
            key=self.make_rng("sr") if self.has_rng("sr") else None,
        )
