"""The tables of README.md, from the result files.

    python bench/report.py

rewrites what stands between the markers in README.md: what was measured, every target that was missed, and which rows
of `table.py` the files do not hold yet. The words around the markers are a person's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from table import MEASURED, Measured

HERE = Path(__file__).parent
README = HERE / "README.md"


def cpu(record: dict) -> list[str]:
    """Time and ratios of every row, and the targets missed."""
    measured = list(_measured(record["cases"]))
    rows = [
        (
            f"`{m.name}`",
            f"{r['call_ms']:.1f} ms",
            f"{r['times_xla']:.1f}x",
            f"{r['times_oracle']:.0f}x",
            f"{r['share_of_copy']:.0%}",
        )
        for m, r in measured
    ]
    return [
        f"`python bench/cpu.py`, {record['date']}, JAX {record['jax']}, {record['size']}x{record['size']} "
        f"{record['dtype']}, {record['threads']} cores.",
        "",
        *_table(("operation", "time", "times XLA", "times the oracle", "share of the copy's rate"), rows),
        "",
        *_misses([(m.name, wanted, got) for m, r in measured for wanted, got in m.missed("cpu", r)]),
        *_absent(record["cases"]),
    ]


def gpu(record: dict) -> list[str]:
    """Time and ratios of every row at every shape, and the targets missed."""
    shapes = record["shapes"]
    first = next(iter(shapes.values()))
    rows = [
        (
            f"`{m.name}`",
            *(
                f"{r['us']:.0f} µs, {r['share_of_copy']:.1%}, {r['times_xla']:.2f}x{'*' * r['xla_differs']}"
                for r in (results[m.name] for results in shapes.values())
            ),
        )
        for m, _ in _measured(first)
    ]
    misses = [
        (m.name, wanted, f"{got} on {shape}")
        for m, _ in _measured(first)
        for shape, results in shapes.items()
        for wanted, got in m.missed("gpu", results[m.name])
    ]
    small = dict(record["small_us"])
    elementwise = small.pop("x + 1 (XLA)")
    return [
        f"`python bench/gpu.py`, {record['date']}, JAX {record['jax']}, {record['device']}, {record['dtype']}, copy "
        f"roof {record['copy_roof_tb_per_s']:.2f} TB/s: time, share of the copy's rate, times XLA's speed.",
        "",
        *_table(("operation", *shapes), rows),
        "",
        "`*` XLA computes other bytes there: it leaves out the rounding of the block scale, and is faster for it.",
        "",
        f"A call on 1024 elements: {min(small.values()):.0f} to {max(small.values()):.0f} µs, an elementwise XLA "
        f"operation {elementwise:.0f} µs.",
        "",
        *_misses(misses),
        *_absent(first),
    ]


def rendered(text: str) -> str:
    """`text` with everything between `<!-- report: NAME -->` and `<!-- end -->` as results/NAME.json has it."""
    for name, report in {"cpu": cpu, "gpu": gpu}.items():
        record = json.loads((HERE / "results" / f"{name}.json").read_text())
        start, end = f"<!-- report: {name} -->\n", "<!-- end -->"
        lines = "\n".join(report(record))
        text, count = re.subn(f"{start}.*?{end}", lambda _, t=f"{start}{lines}\n{end}": t, text, flags=re.DOTALL)
        assert count == 1, f"README.md has {count} places for results/{name}.json"
    return text


def _measured(results: dict) -> Iterator[tuple[Measured, dict]]:
    return ((m, results[m.name]) for m in MEASURED if m.name in results)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]


def _misses(found: Sequence[tuple[str, str, str]]) -> list[str]:
    """One line per operation and target."""
    together: dict[tuple[str, str], list[str]] = {}
    for name, wanted, got in found:
        together.setdefault((name, wanted), []).append(got)
    if not together:
        return ["No target is missed."]
    lines = (f"- `{name}` wants {wanted}: {', '.join(got)}" for (name, wanted), got in together.items())
    return ["Short of its target:", "", *lines]


def _absent(results: dict) -> list[str]:
    absent = [f"`{m.name}`" for m in MEASURED if m.name not in results]
    return ["", f"Not in this file yet: {', '.join(absent)}."] if absent else []


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
