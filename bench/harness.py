"""What the benchmarks share: interleaved timing, the record of the machine, the printed table and the JSON file."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import jax

import jax_nvfp4

RESULTS = Path(__file__).parent / "results"


def medians(timers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each timer (seconds of one call), taken in turn so that a slow phase of the machine hits all."""
    for timer in timers.values():
        timer()
    times = [{name: timer() for name, timer in timers.items()} for _ in range(rounds)]
    return {name: statistics.median(round_[name] for round_ in times) for name in timers}


def close(actual, expected, share: float = 0.01) -> bool:
    """Whether at most `share` of the elements differ: another order of rounding, but the same computation."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return all(a.shape == e.shape and float((a != e).mean()) <= share for a, e in pairs)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned first column, right-aligned others."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def write(name: str, **measured) -> None:
    """Write `measured` to results/<name>.json, beside the device, the versions and the date."""
    record = {
        "device": jax.devices()[0].device_kind,
        "date": datetime.date.today().isoformat(),
        "jax_nvfp4": jax_nvfp4.__version__,
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        **measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {path}")
