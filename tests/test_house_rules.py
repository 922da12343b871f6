"""Rules that keep one fact in one place: how wide a function is, how a name is chosen, how an error
speaks. What may import what is in ``test_layering``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.errors import Error

PACKAGE = Path(__file__).resolve().parents[1] / "rmsnorm_export"
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}

MOST_PARAMETERS = 12
MOST_HOMES = 2

# A command of click, the function of a target, the entry of a process.
CONVENTIONS = {"__all__", "command", "lower", "main"}

ERRORS = {error.__name__ for error in (Error, *Error.__subclasses__())}


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's functions, classes and constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                yield target.id


def test_no_function_is_wide() -> None:
    """What takes more takes a record of options."""
    wide = {}
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                takes = node.args
                count = len(takes.posonlyargs) + len(takes.args) + len(takes.kwonlyargs)
                wide[f"{name}: {node.name}"] = count
    assert {name: count for name, count in wide.items() if count > MOST_PARAMETERS} == {}


def test_no_name_has_three_homes() -> None:
    homes = defaultdict(list)
    for name, tree in TREES.items():
        for defined in set(_defined(tree)) - CONVENTIONS:
            homes[defined].append(name)
    assert {name: files for name, files in homes.items() if len(files) > MOST_HOMES} == {}


def _what(call: ast.Call) -> str | None:
    """Return the first sentence of an error, {} for every value in it; None if it is computed."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in first.values)
        return "".join(map(str, parts))
    return first.value if isinstance(first, ast.Constant) else None


def test_an_error_says_a_whole_sentence() -> None:
    """It begins like one, or with a value, an option or a table; and ends like one."""
    bad = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
                what = _what(node) or "{}"
                begins = what[:1].isupper() or what.startswith(("{", "-", "[", "rmsnorm_export"))
                if not (begins and what.endswith((".", "{}"))):
                    bad.append(f"{name}:{node.lineno}: {what}")
    assert bad == []


READ_ELSEWHERE = {
    "system/reading.py",  # which all others use
    "system/machine.py",  # files of the system
    "runtime/support.py",  # a file of the package
    "tensorrt/plugin/lines.py",  # a file of the package
}


def test_files_are_read_in_one_place() -> None:
    """As regular files and within a bound: a pipe would be waited for, a device read for ever."""
    direct = set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                text = ast.unparse(node)
                ours = "resources" in text or "distribution(" in text or text.startswith("read.")
                if node.func.attr in ("read_bytes", "read_text") and not ours:
                    direct.add(name)
    assert direct <= READ_ELSEWHERE
