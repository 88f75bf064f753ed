"""The benches run at a tiny size, XLA's versions compute the same as the calls, and README.md is what the files say."""

import sys
from pathlib import Path

import jax
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import cpu  # noqa: E402
import gpu  # noqa: E402
import harness  # noqa: E402
import report  # noqa: E402
import table  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_written(monkeypatch):
    monkeypatch.setattr(harness, "write", lambda *_, **__: pytest.fail("a result file was written"))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the oracle is compared on CPUs")
def test_cpu_bench(capsys):
    cpu.main(["--check"])
    printed = capsys.readouterr().out
    assert all(f"\n{measured.name} " in printed for measured in table.MEASURED)


def test_gpu_bench(capsys):
    results = gpu.bench([gpu.CHECKED], "float32", gpu.CHECK)
    printed = capsys.readouterr().out
    (by_name,) = results["shapes"].values()
    for measured in table.MEASURED:
        assert f"\n32x64 {measured.name} " in printed and f"\n{measured.name} " in printed
        assert by_name[measured.name]["us"] > 0 and results["small_us"][measured.name] > 0
    if jax.default_backend() == "cpu":
        assert not [name for name, r in by_name.items() if r["xla_differs"]]


def test_gpu_bench_needs_a_gpu_to_write_anything(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "bench", lambda *_: pytest.fail("measured"))
    if jax.default_backend() == "cpu":
        with pytest.raises(SystemExit):
            gpu.main([])
        assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_rows_have_names_of_their_own():
    assert len({measured.name for measured in table.MEASURED}) == len(table.MEASURED)


def test_missed_targets():
    measured = table.Measured(table.Case("qdq"), share=0.9, times_xla=2)
    reached = {"share_of_copy": 0.9, "times_xla": 2.0, "times_oracle": 100}
    assert measured.missed("gpu", reached) == measured.missed("cpu", reached) == []
    assert measured.missed("gpu", reached | {"share_of_copy": 0.899}) == [("90% of the copy", "89.9%")]
    assert measured.missed("gpu", reached | {"times_xla": 1.995}) == [("2x XLA", "1.995x")]
    assert measured.missed("cpu", reached | {"times_oracle": 85}) == [("100x the oracle", "85x")]


def test_another_computation_is_not_close():
    measured = next(m for m in table.MEASURED if m.case == table.Case("quantize", is_stochastic=True))
    x = jax.random.normal(jax.random.key(0), (32, 64))
    codes, scales = measured.call(*measured.operands(x))
    assert measured.is_close((codes, scales), (codes, scales))
    assert not measured.is_close((codes ^ 0x88, scales), (codes, scales))  # every sign
    assert not measured.is_close((codes, scales[::-1]), (codes, scales))


def test_readme_is_what_the_result_files_say():
    """If this fails: python bench/report.py"""
    text = report.README.read_text()
    assert report.rendered(text) == text
    assert report.rendered(text.replace("| `amax` | ", "| `amax` | 1 ")) == text
