"""A release is a tag: what it is called stands in the package, in CHANGELOG.md and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import rmsnorm_export

ROOT = Path(__file__).resolve().parents[1]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git, or no repository: a release is made from a clone")
    return done.stdout


def test_the_version_of_a_tag_is_that_of_the_package_and_of_the_changes() -> None:
    version = f"v{rmsnorm_export.__version__}"
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    assert tags in ([], [version])
    assert tags or version not in _git("tag", "--list", "v[0-9]*").split(), "the next is to come"
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (first, date), *others = re.findall(r"^## (\S+) \((.+)\)$", text, re.MULTILINE)
    assert f"v{first}" == version
    assert date != "not released" or not tags
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", other) for _, other in others)


def test_every_push_runs_what_a_merge_needs() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.search(r"^on:\n(  .*\n)*  push:", workflow, re.MULTILINE)
    commands = re.findall(r"^ +- run: (.+)$", workflow, re.MULTILINE)
    assert commands == [".ci/run"]
    assert os.access(ROOT / commands[0], os.X_OK)


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
