"""The defects of docs/upstream.md show on the versions that it names.

A newer version that no longer shows one is no failure: the test says that it can be taken off.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sample import sampled

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS: list[tuple[str, str, str, str]] = re.findall(
    r"^\| (\w+) \| ([\d.]+) \|.*\| `docs/upstream/(\w+)\.py ?(\w*)` \|$",
    (DOCS / "upstream.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Package, version, script and the name of one of its defects."""
EXPORTS = {"onnxscript_conv3d_bias", "pytorch_rmsnorm_type", "transformers_padded_rotary"}
QUICK = [row for row in ROWS if row[2] not in EXPORTS]


def test_the_page_has_every_defect_with_its_version() -> None:
    in_scripts = set()
    for script in (DOCS / "upstream").glob("*.py"):
        text = script.read_text(encoding="utf-8")
        seen_on = re.search(r'^SEEN = "(\S+) (\S+)"', text, re.MULTILINE)
        assert seen_on, f"{script.name} has no SEEN"
        cases = text.partition("\nCASES = {")[2].partition("\n}")[0]
        names = re.findall(r'^    "(\w+)": \(', cases, re.MULTILINE)
        in_scripts |= {(*seen_on.groups(), script.stem, name) for name in names or [""]}
    assert len(ROWS) > 5
    assert set(ROWS) == in_scripts


@sampled("row", ROWS, QUICK, ids=lambda row: " ".join(row[2:]).strip())
def test_the_defect_shows(row: tuple[str, str, str, str]) -> None:
    package, version, script, name = row
    try:
        installed = importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install {package}=={version}")
    done = subprocess.run(
        [sys.executable, DOCS / "upstream" / f"{script}.py", *filter(None, [name])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    printed = f"{done.stdout}{done.stderr[-500:]}"
    assert "Traceback" not in done.stderr, printed
    assert done.returncode in (0, 1), printed
    if done.returncode == 0 and installed != version:
        pytest.skip(f"{package} {installed} no longer shows it: take it off docs/upstream.md")
    assert done.returncode == 1, printed
