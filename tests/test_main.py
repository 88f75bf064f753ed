"""`python -m jax_nvfp4`: each command runs what it is named for."""

import pytest

from jax_nvfp4 import __main__, doctor


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["jax_nvfp4", *arguments])
    return __main__.main()


@pytest.mark.parametrize("status", [0, 1])
def test_doctor(monkeypatch, status):
    monkeypatch.setattr(doctor, "run", lambda: status)
    assert run(monkeypatch, "doctor") == status


@pytest.mark.parametrize("arguments, said", [([], "required: command"), (["nurse"], "'nurse'")])
def test_no_other_command_runs(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(doctor, "run", lambda: pytest.fail("ran the doctor"))
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, *arguments)
    assert exit.value.code == 2 and said in capsys.readouterr().err
