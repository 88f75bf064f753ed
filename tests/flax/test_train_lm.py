"""The demo, `examples/train_lm.py`: what it writes, what it returns, and that a resumed run repeats an unbroken one."""

import importlib.util
import json
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

for package in ("flax", "matplotlib", "optax", "orbax.checkpoint", "tqdm"):
    pytest.importorskip(package)

TINY = ["--steps=6", "--batch=2", "--seq=16", "--width=32", "--layers=3"]


@pytest.fixture(scope="module")
def demo():
    path = Path(__file__).parents[2] / "examples" / "train_lm.py"
    spec = importlib.util.spec_from_file_location("train_lm", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "train_lm", module)
        spec.loader.exec_module(module)
        patch.setattr(module, "MARGIN", np.inf)  # six steps say nothing about the formats
        yield module


@pytest.fixture(scope="module", autouse=True)
def as_a_user_runs_it(tmp_path_factory):
    """JAX's own type promotion, and one compilation for all runs of a configuration."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            with jax.numpy_dtype_promotion("standard"):
                yield


@pytest.fixture(scope="module")
def finished(demo, tmp_path_factory):
    """The directory and the exit code of an unbroken run."""
    output = tmp_path_factory.mktemp("finished")
    return output, demo.main([*TINY, f"--output={output}"])


def losses(output: Path) -> dict:
    return json.loads((output / "losses.json").read_text())["losses"]


def test_results(finished):
    output, code = finished
    assert code == 0
    assert (output / "losses.png").read_bytes().startswith(b"\x89PNG")
    bf16, nvfp4 = losses(output)["bf16"], losses(output)["nvfp4_training"]
    for run in (bf16, nvfp4):
        assert len(run["train"]) == 6 and np.all(np.isfinite(run["train"]))
        assert [step for step, _ in run["held_out"]] == [0, 1, 2, 3, 4, 5, 6]
    assert bf16["train"][0] != nvfp4["train"][0]
    assert abs(bf16["train"][0] - nvfp4["train"][0]) < 0.2  # same weights, same batch


def test_exit_code_one_beyond_the_margin(demo, finished, monkeypatch, capsys):
    output, _ = finished
    before = losses(output)
    assert demo.main(["--resume", f"--output={output}"]) == 0
    assert "\nOK: nvfp4_training is " in capsys.readouterr().out
    (_, bf16), (_, nvfp4) = before["bf16"]["held_out"][-1], before["nvfp4_training"]["held_out"][-1]
    monkeypatch.setattr(demo, "MARGIN", nvfp4 - bf16 - 1e-6)
    assert demo.main(["--resume", f"--output={output}"]) == 1
    printed = capsys.readouterr().out
    assert f"bf16 {bf16:.3f}, nvfp4_training {nvfp4:.3f}" in printed and "\nFAILED: " in printed
    assert losses(output) == before


def test_resumed_run_repeats_an_unbroken_one(demo, finished, monkeypatch, tmp_path, capsys):
    batch = demo.Text.batch

    def interrupting(self, seed, step, *size):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return batch(self, seed, step, *size)

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(demo.Text, "batch", interrupting)
        assert demo.main([*TINY, f"--output={tmp_path}"]) == 130
    assert signal.getsignal(signal.SIGINT) == handler
    assert "Stopped after step 3 of 6" in capsys.readouterr().out
    assert (tmp_path / "losses.png").exists()
    assert len(losses(tmp_path)["bf16"]["train"]) == 3
    assert demo.main(["--resume", f"--output={tmp_path}"]) == 0
    assert losses(tmp_path) == losses(finished[0])


@pytest.mark.full
def test_another_recipe_and_text(demo, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    assert demo.main([*TINY, "--steps=1", "--recipe=nvfp4_qat", f"--text={text}", f"--output={tmp_path}"]) == 0
    assert set(losses(tmp_path)) == {"bf16", "nvfp4_qat"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width=40"], "--width must be a multiple of 32, got 40"),
        (["--width=0"], "--width must be at least 32, got 0"),
        (["--layers=2"], "--layers must be at least 3, got 2"),
        (["--steps=0"], "--steps must be at least 1, got 0"),
        (["--seed=-1"], "--seed must be at least 0, got -1"),
        (["--batch=-1"], "--batch must be at least 1, got -1"),
        (["--text=missing.txt"], "No such file or directory: 'missing.txt'"),
        ([f"--text={__file__}", "--seq=5000"], "--text must hold at least 10 x (seq + 1) = 50010 bytes"),
        (["--recipe=mxfp4"], "invalid choice: 'mxfp4'"),
        (["--resume", "--output=missing"], "missing holds no checkpoint: run without --resume first"),
    ],
)
def test_bad_arguments(demo, arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_code:
        demo.main(arguments)
    assert exit_code.value.code == 2
    assert message in capsys.readouterr().err


def test_resume_with_other_arguments(demo, finished, capsys):
    with pytest.raises(SystemExit):
        demo.main(["--resume", "--width=64", f"--output={finished[0]}"])
    assert f"--width was 32 in {finished[0]}, got 64: leave it out" in capsys.readouterr().err
