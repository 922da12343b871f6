"""The defects of docs/upstream.md show on the versions that it names.

A newer version that no longer shows one is no failure: the test says that it can be taken off.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "upstream").glob("*.py"))
DEAR = {"pytorch_rmsnorm_type", "transformers_padded_rotary"}  # each exports a model


def seen(script: Path) -> tuple[str, str]:
    """Package and version that a script says it was seen on."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SEEN":
            package, version = ast.literal_eval(node.value).split()
            return package, version
    raise AssertionError(f"{script.name} has no SEEN")


def test_the_page_has_every_script_with_its_version() -> None:
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) \|.*\| `docs/upstream/(\w+)\.py` \|$",
        (DOCS / "upstream.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) > 5
    assert sorted(rows) == sorted((*seen(script), script.stem) for script in SCRIPTS)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, marks=[pytest.mark.thorough] if path.stem in DEAR else [], id=path.stem)
        for path in SCRIPTS
    ],
)
def test_the_defect_shows(script: Path) -> None:
    package, version = seen(script)
    try:
        installed = importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install {package}=={version}")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    said = f"{done.stdout}{done.stderr[-500:]}"
    assert "Traceback" not in done.stderr, said
    assert done.returncode in (0, 1), said
    if done.returncode == 0 and installed != version:
        pytest.skip(f"{package} {installed} no longer shows it: take it off docs/upstream.md")
    assert done.returncode == 1, said
