"""`dot` on Explicit meshes: it runs wherever the plain product and its gradient run, and returns the same types."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_nvfp4
from jax_nvfp4 import NVFP4_QAT, NVFP4_TRAINING
from jax_nvfp4.testing import make

KEY = jax.random.key(7)
RECIPES = pytest.mark.parametrize("recipe", [NVFP4_TRAINING, NVFP4_QAT], ids=["training", "qat"])


def layouts(rank, axes):
    """Every way to shard an array of `rank` over `axes`, each used at most once, alone or together."""
    choices = [None, *axes, axes] if len(axes) > 1 else [None, *axes]
    for spec in itertools.product(choices, repeat=rank):
        used = [axis for entry in spec if entry for axis in entry]
        if len(used) == len(set(used)):
            yield P(*spec)


def einsum(x, w, out_sharding=None):
    return jnp.einsum("...k,nk->...n", x, w, out_sharding=out_sharding)


def dot(recipe=NVFP4_TRAINING):
    key = KEY if recipe.is_training else None
    return lambda x, w, out_sharding=None: jax_nvfp4.dot(x, w, recipe, key, out_sharding=out_sharding)


def step(product):
    """y, dx and dw, with y for its cotangent."""

    def run(x, w, out_sharding=None):
        y, pullback = jax.vjp(lambda x, w: product(x, w, out_sharding), x, w)
        return y, *pullback(y)

    return jax.jit(run, static_argnums=2)


def outcome(function, *arguments):
    """The types of the results, or the error."""
    try:
        return [(a.shape, a.dtype, a.sharding.spec) for a in jax.eval_shape(function, *arguments)]
    except Exception as error:
        return type(error), str(error)


def check(mesh, shape_x, shape_w, spec_x, spec_w, recipe, expected, out_sharding=None) -> bool:
    """Compares one pair of layouts with the plain product; returns whether that runs."""
    x, w = make("normal", shape_x, "float32"), make("normal", shape_w, "float32", 1)
    x, w = (jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in ((x, spec_x), (w, spec_w)))
    plain = outcome(lambda x, w: step(einsum)(x, w, out_sharding), x, w)
    ours = outcome(lambda x, w: step(dot(recipe))(x, w, out_sharding), x, w)
    assert ours == plain, f"{spec_x} {spec_w}"
    if isinstance(plain, tuple):
        return False
    results = step(dot(recipe))(x, w, out_sharding)
    for what, actual, e, (_, _, spec) in zip(("y", "dx", "dw"), results, expected, plain, strict=True):
        assert actual.sharding.is_equivalent_to(NamedSharding(mesh, spec), actual.ndim)
        np.testing.assert_allclose(
            actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max(initial=0), err_msg=f"{what} of {spec_x} {spec_w}"
        )
    return True


def sweep(mesh, axes, shape_x, shape_w, recipe) -> int:
    """How many pairs of layouts the plain product takes."""
    expected = step(dot(recipe))(make("normal", shape_x, "float32"), make("normal", shape_w, "float32", 1))
    pairs = itertools.product(layouts(len(shape_x), axes), layouts(2, axes))
    with jax.set_mesh(mesh):
        return sum(check(mesh, shape_x, shape_w, *pair, recipe, expected) for pair in pairs)


@RECIPES
@pytest.mark.parametrize("shape_x", [(32, 64), (2, 32, 64), (4, 6, 64), (64,)], ids=str)
def test_layouts_of_one_axis(shape_x, recipe, make_mesh):
    taken = sweep(make_mesh(2, explicit=True), ("a",), shape_x, (32, 64), recipe)
    assert taken >= 2 * len(shape_x)


@pytest.mark.parametrize("shape_x", [(32, 64), pytest.param((4, 8, 64), marks=pytest.mark.full)], ids=str)
@pytest.mark.parametrize("recipe", [NVFP4_TRAINING, pytest.param(NVFP4_QAT, marks=pytest.mark.full)], ids=["nv", "qat"])
def test_layouts_of_two_axes(shape_x, recipe, make_mesh):
    taken = sweep(make_mesh(2, 2, explicit=True), ("a", "b"), shape_x, (96, 64), recipe)
    assert taken >= 39


OPEN = {
    "fsdp": ((32, 64), (32, 64), P("a"), P("a"), P("a")),
    "fsdp along K": ((32, 64), (32, 64), P("a"), P(None, "a"), P("a")),
    "contraction over shards": ((32, 64), (32, 64), P(None, "a"), P(None, "a"), P()),
    "contraction over shards, scattered": ((32, 64), (32, 64), P(None, "a"), P(None, "a"), P("a")),
    "another sharding of the result": ((4, 16, 64), (32, 64), P("a"), P(), P(None, None, "a")),
    "from sequence to batch": ((4, 16, 64), (32, 64), P(None, "a"), P("a"), P("a")),
    "from batch to sequence": ((4, 6, 64), (32, 64), P("a"), P("a"), P(None, "a")),
    "refused": ((32, 64), (32, 64), P("a"), P("a"), P("a", "a")),
}


@RECIPES
@pytest.mark.parametrize("case", OPEN)
def test_out_sharding(case, recipe, make_mesh):
    mesh = make_mesh(2, explicit=True)
    *case, out = OPEN[case]
    expected = step(dot(recipe))(*(make("normal", shape, "float32", i) for i, shape in enumerate(case[:2])))
    with jax.set_mesh(mesh):
        check(mesh, *case, recipe, expected, out)


BLOCKS = {
    "fewer tokens than a block": (2, (2, 64), P("a"), P()),
    "64 over 8": (8, (16, 64), P(None, "a"), P()),
    "w, 64 over 8": (8, (16, 64), P(), P(None, "a")),
    "w, 32 rows over 8": (8, (16, 64), P(), P("a")),
    "12 tokens over 3": (3, (12, 64), P("a"), P()),
    "15 tokens over 5": (5, (15, 64), P("a"), P()),
    "a sequence of 6 over 3": (3, (2, 6, 64), P(None, "a"), P()),
    "a sequence of 48 over 3": (3, (2, 48, 64), P(None, "a"), P()),
    "no tokens": (2, (0, 64), P("a"), P()),
    "no sequences": (2, (0, 32, 64), P(None, "a"), P()),
}


@RECIPES
@pytest.mark.parametrize("case", BLOCKS)
def test_shards_that_cut_blocks(case, recipe):
    """`quantize` refuses them; the rows of a product may be any number."""
    count, shape, *specs = BLOCKS[case]
    if jax.device_count() < count:
        pytest.skip(f"needs {count} devices")
    mesh = jax.make_mesh((count,), ("a",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:count])
    if shape[0] == 0:
        expected = np.zeros((*shape[:-1], 32)), np.zeros(shape), np.zeros((32, 64))
    else:
        expected = step(dot(recipe))(make("normal", shape, "float32"), make("normal", (32, 64), "float32", 1))
    with jax.set_mesh(mesh):
        assert check(mesh, shape, (32, 64), *specs, recipe, expected)


@RECIPES
def test_outside_of_the_mesh_context(recipe, make_mesh, put):
    """Arrays carry their mesh; one that has none is the same everywhere (where the plain gradient is refused)."""
    mesh = make_mesh(-1, explicit=True)
    x, w = make("normal", (256, 64), "float32"), make("normal", (32, 64), "float32", 1)
    expected = step(dot(recipe))(x, w)
    for weight in (put(w, mesh), w) if recipe.is_training else (put(w, mesh),):
        for actual, e in zip(step(dot(recipe))(put(x, mesh, "a"), weight), expected, strict=True):
            np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max())


def test_whole_shards_stay_where_they_are(make_mesh, put):
    """A sharded sequence is merged with no other axis, forward and backward: all that is moved are sums."""
    mesh = make_mesh(2, 2, explicit=True)
    x, w = make("normal", (4, 64, 64), "float32"), make("normal", (32, 64), "float32", 1)
    with jax.set_mesh(mesh):
        for spec in (("a", "b"), (None, "b"), ("a", None)):
            text = step(dot()).lower(put(x, mesh, *spec), put(w, mesh)).compile().as_text()
            assert not any(f"{kind}(" in text for kind in ("all-gather", "all-to-all", "collective-permute"))


def test_vmap_on_an_explicit_mesh(make_mesh, put):
    mesh = make_mesh(2, explicit=True)
    x, w = make("normal", (3, 32, 64), "float32"), make("normal", (3, 32, 64), "float32", 1)
    batched = jax.jit(jax.vmap(step(dot())))
    expected = batched(x, w)
    with jax.set_mesh(mesh):
        for actual, e in zip(batched(put(x, mesh, None, "a"), put(w, mesh)), expected, strict=True):
            np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max())


KERNELS = {
    "in": (P("a"), P("a", None), P("a")),
    "out": (P("a"), P(None, "a"), P("a")),
    "tensor": (P(), P(None, "a"), None),
    "tensor, in": (P(None, "a"), P("a", None), P()),
    "data": (P("a"), P(), None),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(32, 64), (2, 16, 64)], ids=str)
def test_linear_layer(kernel, shape, make_mesh):
    """FSDP and tensor-parallel kernels of `nnx.Linear`."""
    nnx = pytest.importorskip("flax.nnx")
    from jax_nvfp4.flax.nnx import DotGeneral

    mesh = make_mesh(2, explicit=True)
    spec_x, spec_w, out = KERNELS[kernel]

    def run(product, x, sharding=None):
        layer = nnx.Linear(64, 96, use_bias=False, dot_general=product, rngs=nnx.Rngs(0))
        if sharding is not None:
            layer.kernel.set_value(jax.device_put(layer.kernel[...], sharding))
        options = {} if sharding is None or out is None else {"out_sharding": out}

        @nnx.jit
        def gradients(layer, x):
            y = layer(x, **options)
            return y, *nnx.grad(lambda layer, x: (layer(x, **options) ** 2).sum(), argnums=(0, 1))(layer, x)

        y, dlayer, dx = gradients(layer, x)
        return y, dx, dlayer.kernel[...]

    x = make("normal", shape, "float32")
    expected = run(DotGeneral(), x)
    with jax.set_mesh(mesh):
        x, sharding = jax.device_put(x, NamedSharding(mesh, spec_x)), NamedSharding(mesh, spec_w)
        plain, ours = run(jax.lax.dot_general, x, sharding), run(DotGeneral(), x, sharding)
    for what, actual, like, e in zip(("y", "dx", "dw"), ours, plain, expected, strict=True):
        assert actual.sharding == like.sharding, what
        np.testing.assert_allclose(actual, e, rtol=1e-4, atol=1e-4 * np.abs(e).max(), err_msg=what)


@pytest.mark.parametrize("spec", [P(None, "a"), P(None, None, "a"), P("a")], ids=str)
def test_several_feature_axes(spec, make_mesh):
    """Kernels of attention, (in, heads, head) and (heads, head, out)."""
    from jax_nvfp4.flax import dot_general

    mesh = make_mesh(2, explicit=True)
    x, w = make("normal", (4, 8, 64), "float32"), make("normal", (64, 4, 16), "float32", 1)
    dims, back = (((2,), (0,)), ((), ())), (((2, 3), (0, 1)), ((), ()))

    def loss(x, w, product, out=None):
        y = product(x, w, dims)
        return (product(y, jnp.moveaxis(w, 0, 2), back, out_sharding=out) ** 2).sum()

    expected = jax.grad(loss, argnums=(0, 1))(x, w, dot_general)
    with jax.set_mesh(mesh):
        operands = jax.device_put(x, NamedSharding(mesh, P())), jax.device_put(w, NamedSharding(mesh, spec))
        plain, ours = (
            jax.eval_shape(lambda x, w, product=product: product(x, w, dims), *operands)
            for product in (jax.lax.dot_general, dot_general)
        )
        assert ours.sharding == plain.sharding
        for product in (jax.lax.dot_general, dot_general):
            results = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=(2, 3))(*operands, product, P())
            for actual, operand in zip(results, operands, strict=True):
                assert actual.sharding.is_equivalent_to(operand.sharding, actual.ndim)
    for actual, e in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual, e, rtol=1e-3, atol=1e-3 * np.abs(e).max())
