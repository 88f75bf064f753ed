"""docs/numerics.md: the sections that the package and its tests cite exist, and its known answers are those tested."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "numerics.md").read_text()
SECTIONS = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", PAGE, re.MULTILINE))
CITATION = re.compile(r"[Ss]ections? ((?:\d+(?:\.\d+)?(?:, | and | to )?)+)")


def test_all_thirteen_sections_are_there():
    assert SECTIONS == {*map(str, range(1, 14)), "2.7", "2.8"}


@pytest.mark.parametrize("folder", ["jax_nvfp4/oracle", "tests/oracle"])
def test_cited_sections_exist(folder):
    cited = set()
    for file in (ROOT / folder).glob("*.py"):
        for citation in CITATION.findall(file.read_text()):
            cited.update(re.findall(r"\d+(?:\.\d+)?", citation))
    assert len(cited) > 8 and cited <= SECTIONS
