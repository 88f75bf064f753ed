"""How the operations split over a mesh: what the sharding rules of all of them share.

An operation names the dimensions of its operands and results (`Dims`) and says how small a piece of each may
stand alone. From that one description follow the Shardy rule (which sharding a result takes from its operands),
the partitioning under `jit` with Auto axes, and the `shard_map` under Explicit axes. A shard that holds whole
blocks is never gathered. One that does not is replicated along that dimension under Auto axes, where the
compiler chooses shardings, and is a ValueError under Explicit axes, where the user chose them.
"""

from __future__ import annotations

import copyreg
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Axes = dict[str, tuple[str, ...]]
"""The mesh axes that shard each named dimension, major to minor; dimensions that are whole are absent."""

Local = Callable[[Callable, Sequence[jax.Array], Axes], Sequence[jax.Array]]
"""Runs an operation on one shard: (bind, local operands, axes) -> local results."""


@dataclass(frozen=True)
class Dims:
    """The dimensions of one operation.

    Attributes:
        operands, results: per array, the names of its trailing dimensions, separated by blanks ("m k"); every
            axis before them is batch, and may be cut anywhere.
        blocks: for each name, how many consecutive elements of the first operand cannot be separated.
            A name that is absent is never sharded.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    blocks: dict[str, int] = field(default_factory=dict)


def max_over(amax: jax.Array, axis_names: Sequence[str]) -> jax.Array:
    """The maximum of non-negative float32 values over mesh axes; NaN wins, as it does in every amax.

    The bits of non-negative floats order as integers with NaN above Inf, and integer maxima are exact in every
    collective library, while their float maxima may drop NaN.
    """
    if not axis_names:
        return amax
    bits = jax.lax.bitcast_convert_type(amax, jnp.int32)
    return jax.lax.bitcast_convert_type(jax.lax.pmax(bits, tuple(axis_names)), jnp.float32)


def shard_start(axes: Axes, name: str, local_size: int) -> jax.Array:
    """The global index (uint32) at which this shard begins along a dimension."""
    index = jax.lax.axis_index(axes[name]) if name in axes else 0
    return jnp.asarray(index, jnp.uint32) * jnp.uint32(local_size)


def local_groups(group_sizes: jax.Array, axes: Axes, rows: int) -> jax.Array:
    """The part of each group that lies in this shard of `rows` rows: (..., E) int32.

    Sizes that are wrong for the whole array (negative, or adding up to more rows than there are) stay wrong.
    """
    if "m" not in axes:
        return group_sizes
    start = shard_start(axes, "m", rows).astype(jnp.int32)
    ends = jnp.cumsum(group_sizes, axis=-1, dtype=jnp.int32)
    inside = jnp.clip(ends, start, start + rows) - jnp.clip(ends - group_sizes, start, start + rows)
    total = rows * jax.lax.axis_size(axes["m"])
    is_wrong = (group_sizes < 0) | (ends > total)
    return jnp.where(is_wrong, jnp.where(group_sizes < 0, group_sizes, rows + 1), inside)


def same_varying(*arrays: jax.Array) -> list[jax.Array]:
    """`arrays` typed as varying over the same manual mesh axes: those over which any of them varies.

    Inside `shard_map` the operands of one call must agree in this. The transpose is a sum over the added axes.
    """
    varying = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    added = [tuple(frozenset().union(*varying) - own) for own in varying]
    return [jax.lax.pcast(a, axes, to="varying") if axes else a for a, axes in zip(arrays, added, strict=True)]


def partitioned(bind: Callable, local: Local, dims: Dims, operands: Sequence, results: Sequence) -> Callable:
    """`bind` with a sharding rule: a function of the operands that splits over the mesh.

    Args:
        bind: the operation on whole arrays.
        local: the operation on one shard.
        dims: the dimensions of its arrays.
        operands, results: their shapes.
    """
    plan = _Plan(dims, [tuple(a.shape) for a in operands], [tuple(a.shape) for a in results])
    mesh_type = jax.typeof(operands[0]).sharding.mesh
    explicit = explicit_axes(operands[0])
    if any(explicit):
        return plan.shard_map(bind, local, explicit, mesh_type)
    if not plan.is_static or not (mesh_type.empty or mesh_type.auto_axes) or _is_without_devices(operands):
        return bind
    # Inside a shard_map over other axes the shapes are a shard's, whose place in the mesh is not known here.
    is_whole = not mesh_type.manual_axes

    def split(mesh, operand_shapes):
        first = operand_shapes[0]
        if mesh.empty:
            known = next(a for a in operand_shapes if a.sharding is not None)
            devices = _slices(known.sharding, len(known.shape)) if is_whole else known.sharding.device_set
            mesh = Mesh(np.array(list(devices)), ("devices",))
        axes = {}
        if is_whole and first.sharding is not None:
            axes = plan.whole_block_axes(_mesh_axes(first.sharding, len(first.shape), mesh), mesh.shape)
        return mesh, axes, [tuple(NamedSharding(mesh, spec) for spec in specs) for specs in plan.specs(axes)]

    def partition(mesh, operand_shapes, result_shapes):
        mesh, axes, (operand_shardings, result_shardings) = split(mesh, operand_shapes)
        return mesh, lambda *arrays: tuple(local(bind, arrays, axes)), result_shardings, operand_shardings

    def infer(mesh, operand_shapes, result_shapes):  # the rule of GSPMD, where a user has switched Shardy off
        return split(mesh, operand_shapes)[2][1]

    rule, factors, replicated = plan.shardy_rule()
    call = custom_partitioning(lambda *arrays: bind(*arrays))
    call.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        sharding_rule=rule,
        need_replication_factors=replicated,
        decode_shardings=False,
        **factors,
    )
    return call


def _is_without_devices(operands: Sequence) -> bool:
    """Whether the program is lowered for an `AbstractMesh` that no devices stand behind, where JAX has no partition."""
    meshes = [*(jax.typeof(a).sharding.mesh for a in operands), jax.sharding.get_abstract_mesh()]
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    return mesh is not None and getattr(mesh, "abstract_device", mesh) is None


# JAX keeps what partitions a program beside it once it is compiled, and serialize_executable pickles that with the
# program. It is closures, which have had their use by then: they are pickled as nothing.
if _spent := getattr(sys.modules[custom_partitioning.__module__], "_ShardingCallbackInfo", None):
    copyreg.pickle(_spent, lambda _: (object, ()))


def explicit_axes(array) -> list[tuple[str, ...]]:
    """The Explicit mesh axes that shard each dimension of `array`, by its type."""
    sharding = jax.typeof(array).sharding
    is_explicit = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
    entries = (*sharding.spec, *(None,) * (array.ndim - len(sharding.spec)))
    return [tuple(a for a in _as_tuple(entry) if is_explicit[a] == AxisType.Explicit) for entry in entries]


def explicit_sharding(array) -> NamedSharding | None:
    """The sharding in the type of `array` on a mesh with Explicit axes, None on others."""
    sharding = jax.typeof(array).sharding
    return sharding if AxisType.Explicit in sharding.mesh.axis_types else None


def merged(array, counts: Sequence[int]) -> tuple[tuple, NamedSharding | None]:
    """The shape of `array`, and its Explicit sharding, once so many consecutive axes each are one."""
    ends = [sum(counts[:i]) for i in range(1, len(counts) + 1)]
    parts = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
    names, sharding = explicit_axes(array), explicit_sharding(array)
    spec = PartitionSpec(*(sum(names[part], ()) or None for part in parts))
    shape = tuple(math.prod(array.shape[part]) for part in parts)
    return shape, sharding and NamedSharding(sharding.mesh, spec)


def replicate(array: jax.Array, *axes: int) -> jax.Array:
    """`array`, no longer sharded over Explicit mesh axes along `axes`."""
    names, sharding = explicit_axes(array), explicit_sharding(array)
    if sharding is None or not any(names[axis] for axis in axes):
        return array
    for axis in axes:
        names[axis] = ()
    return jax.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*(n or None for n in names))))


def whole_blocks(array: jax.Array, axis: int, block: int) -> jax.Array:
    """`array`, replicated along `axis` where shards over Explicit mesh axes would cut blocks."""
    mesh = jax.typeof(array).sharding.mesh
    shards = math.prod(mesh.shape[name] for name in explicit_axes(array)[axis])
    return array if shards == 1 or array.shape[axis] % (shards * block) == 0 else replicate(array, axis)


class _Plan:
    """The dimensions of one call, with its shapes."""

    def __init__(self, dims: Dims, operands: Sequence[tuple], results: Sequence[tuple]):
        batch = [f"batch{i}" for i in range(len(operands[0]) - len(dims.operands[0].split()))]
        self.shapes = (operands, results)
        self.names = tuple([batch + dim.split() for dim in side] for side in (dims.operands, dims.results))
        self.blocks = {**dims.blocks, **dict.fromkeys(batch, 1)}
        self.sizes = dict(zip(self.names[0][0], operands[0], strict=True))  # of the first operand
        self.is_static = all(isinstance(n, int) for shapes in self.shapes for shape in shapes for n in shape)

    def pieces(self, name: str) -> int | None:
        """How many pieces `name` can be cut into, or None where it cannot be cut."""
        block = self.blocks.get(name)
        if block is None or name not in self.sizes or self.sizes[name] % block:
            return None
        pieces = self.sizes[name] // block
        return pieces if pieces > 1 else None

    def specs(self, axes: Axes) -> tuple[tuple[PartitionSpec, ...], tuple[PartitionSpec, ...]]:
        """The partition specs of all operands and of all results."""
        operands, results = (
            tuple(PartitionSpec(*(axes.get(name) for name in names)) for names in arrays) for arrays in self.names
        )
        return operands, results

    def whole_block_axes(self, dim_axes: Sequence[tuple[str, ...]], mesh_shape: Mapping[str, int]) -> Axes:
        """The axes of the first operand's dimensions, without those that would cut a block."""
        axes = {}
        for name, names in zip(self.names[0][0], dim_axes, strict=True):
            pieces = self.pieces(name)
            if names and pieces is not None and pieces % math.prod(mesh_shape[n] for n in names) == 0:
                axes[name] = names
        return axes

    def shardy_rule(self) -> tuple[str, dict[str, int], tuple[str, ...]]:
        """The rule in Shardy's notation: a cuttable dimension is (pieces, elements of a piece)."""
        factors: dict[str, int] = {}
        replicated: list[str] = []

        def dimension(name: str, size: int) -> str:
            pieces = self.pieces(name)
            inner = f"r{len(replicated)}"
            if pieces is None:
                replicated.append(inner)
                return inner
            if size == pieces:
                return name
            replicated.append(inner)
            factors[name], factors[inner] = pieces, size // pieces
            return f"({name} {inner})"

        sides = [
            ", ".join(" ".join(map(dimension, names, shape)) for names, shape in zip(arrays, shapes, strict=True))
            for arrays, shapes in zip(self.names, self.shapes, strict=True)
        ]
        alone = {factor for side in sides for factor in side.replace(",", " ").split() if "(" not in factor}
        factors = {name: size for name, size in factors.items() if name not in alone}
        return " -> ".join(sides), factors, tuple(replicated)

    def shard_map(self, bind: Callable, local: Local, dim_axes: Sequence[tuple[str, ...]], mesh) -> Callable:
        """The operation under Explicit axes, which sharded types make known at trace time."""
        axes = self.whole_block_axes(dim_axes, mesh.shape)
        for name, names in zip(self.names[0][0], dim_axes, strict=True):
            if names and name not in axes:
                shards = math.prod(mesh.shape[n] for n in names)
                raise ValueError(
                    f"a dimension of {self.sizes[name]} is sharded over mesh axes {names} into shards of "
                    f"{self.sizes[name] / shards:g}, which cuts blocks of {self.blocks.get(name, self.sizes[name])}: "
                    f"replicate it first, for example with jax.reshard"
                )
        in_specs, out_specs = self.specs(axes)
        call = jax.shard_map(
            lambda *arrays: tuple(local(bind, arrays, axes)),
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={n for names in dim_axes for n in names},
        )
        shardings = [NamedSharding(mesh, spec) for spec in in_specs]
        return lambda *arrays: call(*map(jax.reshard, arrays, shardings))


def _as_tuple(entry) -> tuple[str, ...]:
    return () if entry is None else tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def _slices(sharding, ndim: int) -> dict:
    """What each device holds of an array of rank `ndim` that is as large as there are devices, in every dimension.

    JAX tells slices only of sizes that divide evenly, as that one always does.
    """
    return sharding.devices_indices_map((len(sharding.device_set),) * ndim)


def _mesh_axes(sharding, ndim: int, mesh: Mesh) -> list[tuple[str, ...]]:
    """The mesh axes that shard each dimension of an array of rank `ndim`.

    A compiler may also cut a dimension over part of an axis, which no PartitionSpec can say; such a dimension
    counts as not sharded.
    """
    slices = _slices(sharding, ndim)

    def start(device, dim: int) -> int:
        return slices[device][dim].start or 0

    result = []
    for dim in range(ndim):
        steps = {}
        for axis, name in enumerate(mesh.axis_names):
            if mesh.devices.shape[axis] > 1:
                neighbour = mesh.devices[tuple(int(i == axis) for i in range(mesh.devices.ndim))]
                steps[name] = start(neighbour, dim) - start(mesh.devices.flat[0], dim)
        names = tuple(sorted((n for n in steps if steps[n] > 0), key=steps.__getitem__, reverse=True))
        expected = _slices(NamedSharding(mesh, PartitionSpec(names or None)), 1)
        result.append(names if all((expected[d][0].start or 0) == start(d, dim) for d in expected) else ())
    return result
