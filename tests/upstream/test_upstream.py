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
SCRIPTS = sorted((DOCS / "upstream").glob("*.py"))
EXPORTS = {"onnxscript_conv3d_bias", "pytorch_rmsnorm_type", "transformers_padded_rotary"}
QUICK = [p for p in SCRIPTS if p.stem not in EXPORTS]


def seen(script: Path) -> tuple[str, str]:
    """Package and version that a script says it was seen on."""
    seen_on = re.search(r'^SEEN = "(\S+) (\S+)"', script.read_text(encoding="utf-8"), re.MULTILINE)
    assert seen_on, f"{script.name} has no SEEN"
    return seen_on[1], seen_on[2]


def test_the_page_has_every_script_with_its_version() -> None:
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) \|.*\| `docs/upstream/(\w+)\.py` \|$",
        (DOCS / "upstream.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) > 5
    assert sorted(rows) == sorted((*seen(script), script.stem) for script in SCRIPTS)


@sampled("script", SCRIPTS, QUICK, ids=lambda path: path.stem)
def test_the_defect_shows(script: Path) -> None:
    package, version = seen(script)
    try:
        installed = importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install {package}=={version}")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    printed = f"{done.stdout}{done.stderr[-500:]}"
    assert "Traceback" not in done.stderr, printed
    assert done.returncode in (0, 1), printed
    if done.returncode == 0 and installed != version:
        pytest.skip(f"{package} {installed} no longer shows it: take it off docs/upstream.md")
    assert done.returncode == 1, printed
