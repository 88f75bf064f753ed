"""Files of quantized arrays: an .npz whose header says, in JSON, what the bytes beside it mean.

| entry | content |
|---|---|
| header | UTF-8 bytes of JSON: kind, version, spec, axis, and the dtype and shape of each field |
| codes, scales, amax, group_sizes | those there are; as bytes (uint8) where NumPy files cannot name the dtype |

A reader takes files of its own version and nothing else. A change that an older reader would misread is a new version.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_nvfp4.spec import RHT, FourOverSix, QuantSpec
from jax_nvfp4.tensor import LEAVES, BlockScaled

KIND = "jax_nvfp4.BlockScaled"
VERSION = 1


def save(path: str | os.PathLike, t: BlockScaled) -> None:
    """Write `t` to a file that `load` reads.

    Args:
        path: the file; an existing one is replaced.
        t: a quantized operand.

    Raises:
        TypeError: `t` is not a BlockScaled of arrays.
        ValueError: what it holds does not fit together.
    """
    path = os.fspath(path)
    if not isinstance(t, BlockScaled):
        raise TypeError(
            f"save writes a BlockScaled, as jax_nvfp4.quantize returns it, got {type(t).__name__}: quantize it "
            "first, or use numpy.save for an array"
        )
    t.check()
    arrays = {}
    for name in LEAVES:
        leaf = getattr(t, name)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"save writes arrays, but {name} is a ShapeDtypeStruct, which has no values")
        if leaf is not None:
            arrays[name] = np.asarray(leaf)
    header = {
        "kind": KIND,
        "version": VERSION,
        **static_fields(t.spec, t.axis),
        "fields": {name: {"dtype": a.dtype.name, "shape": a.shape} for name, a in arrays.items()},
    }
    entries: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    # NumPy does not know the dtypes of ml_dtypes when it reads a file.
    entries |= {name: a if a.dtype.isbuiltin == 1 else a.view(np.uint8) for name, a in arrays.items()}
    with open(path, "wb") as file:
        np.savez(file, **entries)


def load(path: str | os.PathLike) -> BlockScaled:
    """Read what `save` wrote: the same bytes, dtypes, spec and axis.

    Args:
        path: the file.

    Raises:
        ValueError: the file is damaged, was not written by `save`, or by another version of it.
        OSError: it cannot be opened.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(
                f"{path} was not written by jax_nvfp4.save, or is damaged: it is no .npz file. numpy.load reads .npy"
            )
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as entries:
                if "header" not in entries:
                    raise _Foreign(f"its entries are {', '.join(entries.files) or 'none'}")
                header = _header(entries["header"])
                arrays = {name: entries[name] for name in header["fields"]}
            return _container(header, arrays)
        except _Foreign as error:
            raise ValueError(f"{path} was not written by jax_nvfp4.save: {error}") from None
        except _Future as error:
            raise ValueError(f"{path} {error}") from None
        except Exception as error:  # of any type: the readers of zip, NumPy and JSON trust what they read
            raise ValueError(
                f"{path} is damaged: {error}. Write it again with jax_nvfp4.save, or fetch it again"
            ) from error


class _Foreign(Exception):
    """The file is another program's."""


class _Future(Exception):
    """The file is of another version."""


def static_fields(spec: QuantSpec, axis: int) -> dict[str, Any]:
    """`spec` and `axis` as JSON can say them."""
    return {"spec": dataclasses.asdict(spec), "axis": axis}


def static_from_fields(fields: dict[str, Any]) -> tuple[QuantSpec, int]:
    """`spec` and `axis` from what `static_fields` made."""
    parts = {"rht": RHT, "four_over_six": FourOverSix}
    values = {name: parts[name](**v) if name in parts and v is not None else v for name, v in fields["spec"].items()}
    return QuantSpec(**values), fields["axis"]


def _header(entry: np.ndarray) -> dict[str, Any]:
    """The header, if it is one of this version."""
    try:
        header = json.loads(entry.tobytes())
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise _Foreign(f"its header does not say that it is a {KIND}")
    if header.get("version") != VERSION:
        raise _Future(
            f"is of version {header.get('version')!r} of the file format, and this jax_nvfp4 reads version {VERSION}: "
            "install the jax_nvfp4 that wrote it"
        )
    return header


def _container(header: dict[str, Any], plain: dict[str, np.ndarray]) -> BlockScaled:
    """The container that a header describes, from the entries of its file."""
    arrays: dict[str, Any] = dict.fromkeys(LEAVES)
    for name, said in header["fields"].items():
        if name not in arrays:
            raise ValueError(f"its header names a field {name!r}, which no BlockScaled has")
        dtype, array = jnp.dtype(said["dtype"]), plain[name]
        if array.dtype != dtype and array.dtype == np.uint8 and dtype.itemsize == 1:
            array = array.view(dtype)
        if array.dtype != dtype or list(array.shape) != said["shape"]:
            raise ValueError(
                f"{name} is {array.dtype.name} of shape {array.shape}, but the header says {said['dtype']} of shape "
                f"{tuple(said['shape'])}"
            )
        arrays[name] = jnp.asarray(array)
    spec, axis = static_from_fields(header)
    t = BlockScaled(**arrays, spec=spec, axis=axis)
    t.check()
    return t
