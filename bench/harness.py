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


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned first column, right-aligned others."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def write(name: str, device: jax.Device, dtype: str, **measured) -> None:
    """Write `measured` beside the device, the versions and the date to results/<name>.json, which names a dtype
    that is not bfloat16."""
    record = {
        "device": device.device_kind,
        "date": datetime.date.today().isoformat(),
        "jax_nvfp4": jax_nvfp4.__version__,
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        "dtype": dtype,
        **measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'' if dtype == 'bfloat16' else f'-{dtype}'}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {path}; `python bench/report.py` brings it into README.md")
