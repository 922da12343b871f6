"""What the package reads or changes of others without their promise is listed, and is there.

``CONTRIBUTING.md`` has the list. Private are names with an underscore, and of transformers all that
stands below its top.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec.toml
import pytest
from packaging.requirements import Requirement

from rmsnorm_export.system.packages import TRANSFORMERS, untried

ROOT = Path(__file__).parents[1]
TREES = [ast.parse(path.read_text()) for path in (ROOT / "rmsnorm_export").rglob("*.py")]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text().partition("## Private names")[2].partition("\n## ")[0]
)
LISTED = set(re.findall(r"^\| `([\w.]+)` \|", SECTION, re.MULTILINE))


def is_private(name: str) -> bool:
    parts = name.split(".")
    if parts[0] in ("rmsnorm_export", *sys.stdlib_module_names) or parts[-1].endswith("__"):
        return False
    beneath = parts[0] == "transformers" and len(parts) > 2
    return beneath or any(part.startswith("_") for part in parts)


def own_names() -> set[str]:
    """Names that the package itself defines, attributes included."""
    names = set()
    for node in (node for tree in TREES for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return names


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what a module imports by name, and the name that it has there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Call):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            call = re.fullmatch(r"importlib.import_module\('([\w.]+)'\)", ast.unparse(node.value))
            if call and isinstance(target, ast.Name):
                yield target.id, call[1]


def used() -> set[str]:
    """Private names of others: whole, or ``.name`` of an object whose class is not known."""
    own, names = own_names(), set()
    config = importlib.import_module("transformers").PreTrainedConfig
    for tree in TREES:
        modules = dict(imported(tree))
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        # Of a module that is used by its attributes, those are what counts.
        by_attribute = {ast.unparse(node.value) for node in attributes}
        names |= {modules[name] for name in modules.keys() - by_attribute}
        names |= {f"{modules.get(ast.unparse(n.value), '')}.{n.attr}" for n in attributes}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and str(node.value).startswith("_"):
                names |= {f".{node.value}"} if hasattr(config, str(node.value)) else set()
    return {name for name in names if is_private(name) and name.rpartition(".")[2] not in own}


def resolved(name: str) -> object:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            fields = vars(value).get("__annotations__", {})  # those of an object
            value = fields[part] if part in fields else getattr(value, part)
        return value
    raise ImportError(name)


pytest.importorskip("transformers.exporters.metadata", reason="transformers>=5.23")


def test_what_is_used_is_listed() -> None:
    unlisted = {name for name in used() if not any(one.endswith(name) for one in LISTED)}
    assert unlisted == set()


def test_what_is_listed_is_used() -> None:
    names = used()
    assert {one for one in LISTED if not any(one.endswith(name) for name in names)} == set()


@pytest.mark.parametrize("name", sorted(LISTED))
def test_the_installed_release_has_it(name: str) -> None:
    resolved(name)


def test_extras_go_as_far_as_what_was_tried() -> None:
    project = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(line) for lines in extras.values() for line in lines]
    bounds = {str(one) for one in declared if one.name == "transformers"}
    assert {Requirement(line) for line in bounds} == {Requirement(TRANSFORMERS)}
    assert all("<" in str(one.specifier) for one in declared if one.name == "torch")
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("transformers=="):
            pinned = line.partition("==")[2].partition(";")[0]
            assert Requirement(TRANSFORMERS).specifier.contains(pinned)
    assert untried(TRANSFORMERS) == ""
    assert untried("transformers<5").endswith("was not tried, transformers<5 was")
