"""A release is a tag: what it is called stands in the package, in CHANGELOG.md and nowhere else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import rmsnorm_export

ROOT = Path(__file__).resolve().parents[1]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("no git, or no repository: a release is made from a clone")
    return done.stdout


def test_the_version_of_a_tag_is_that_of_the_package() -> None:
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    assert tags in ([], [f"v{rmsnorm_export.__version__}"])
    released = set(_git("tag", "--list", "v[0-9]*").split())
    assert tags or f"v{rmsnorm_export.__version__}" not in released, "the next version is to come"


def test_the_changes_begin_with_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+)(?: \((.+)\))?$", text, re.MULTILINE)
    assert versions, "## VERSION (YYYY-MM-DD), or (not released)"
    assert versions[0][0] == rmsnorm_export.__version__
    for version, date in versions:
        released = re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert released or (version, date) == (rmsnorm_export.__version__, "not released")
    if f"v{versions[0][0]}" in _git("tag", "--points-at", "HEAD").split():
        assert versions[0][1] != "not released"


def test_what_the_tests_and_the_pages_install_is_pinned() -> None:
    """With constraints.txt an environment is made anew as it was."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {_plain(name) for name in re.findall(r"^([\w-]+)==", pins, re.MULTILINE)}
    extras = "dependencies|ort|torch|tensorrt-rtx|plugin|test|dev|docs"
    lists = re.findall(rf"^(?:{extras}) = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL)
    assert len(lists) == len(extras.split("|"))
    wanted = {_plain(name) for text in lists for name in re.findall(r"[\"']([\w-]+)[>\"']", text)}
    assert len(wanted) > 30
    assert wanted <= pinned


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
