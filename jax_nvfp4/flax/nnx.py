"""NVFP4 products for Flax NNX layers: `nnx.Linear(..., dot_general=DotGeneral(rngs=rngs), rngs=rngs)`."""

from __future__ import annotations

import jax

from jax_nvfp4.flax import dot_general, without_flax
from jax_nvfp4.spec import NVFP4_TRAINING, Recipe

try:
    from flax import nnx
except Exception as error:
    raise without_flax(__name__, error) from error


class DotGeneral(nnx.Module):
    """The `dot_general` of `nnx.Linear` and `nnx.LinearGeneral`, and of `nnx.MultiHeadAttention` for both products.

    Every call draws a key, so the gradients of two steps are rounded with different random bits. The stream is forked
    from `rngs`: layers do not share keys, and what `rngs` gives to others does not depend on how often a layer runs.

    Attributes:
        recipe: which operands are quantized, and how.
        rngs: the stream of keys, None for rounding to nearest.
        deterministic: whether calls draw no key, set by `model.eval()` and cleared by `model.train()`. Only gradients
            are ever rounded stochastically: the result of the product is the same either way.
    """

    def __init__(
        self,
        recipe: Recipe = NVFP4_TRAINING,
        *,
        rngs: nnx.Rngs | None = None,
        deterministic: bool = False,
    ):
        """Fork the stream "sr" of `rngs` (or its default stream); `rngs=None` rounds gradients to nearest.

        Raises:
            TypeError: `rngs` is no `nnx.Rngs`, `recipe` no `Recipe`.
            ValueError: `rngs` has neither stream.
        """
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe must be a Recipe such as jax_nvfp4.NVFP4_TRAINING, got {recipe!r}")
        if rngs is not None and not isinstance(rngs, nnx.Rngs):
            raise TypeError(f"rngs must be an nnx.Rngs such as nnx.Rngs(sr=0), or None, got {type(rngs).__name__}")
        if rngs is not None and "sr" not in rngs and "default" not in rngs:
            raise ValueError(
                f"rngs has no stream 'sr' and no default one, only {list(rngs)}: pass nnx.Rngs(0, sr=1), "
                "or rngs=None to round gradients to nearest"
            )
        self.recipe = recipe
        self.rngs = nnx.data(None if rngs is None else rngs["sr"].fork())
        self.deterministic = deterministic

    def __call__(
        self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, *, out_sharding=None
    ) -> jax.Array:
        """See `jax_nvfp4.flax.dot_general`."""
        key = None if self.rngs is None or self.deterministic else self.rngs()
        return dot_general(
            lhs,
            rhs,
            dimension_numbers,
            precision,
            preferred_element_type,
            out_sharding=out_sharding,
            recipe=self.recipe,
            key=key,
        )
