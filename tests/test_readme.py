"""The README's example runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_example_runs_as_printed():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    exec(compile(code, str(README), "exec"), {})  # its asserts are the test
