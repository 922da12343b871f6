"""Rules that keep one fact in one place: how wide a function is, how a name is chosen, how an error
speaks. What may import what is in ``test_layering``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "rmsnorm_export"
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}

MOST_PARAMETERS = 12
MOST_HOMES = 2

# A command of click, the function of a target, the entry of a process.
CONVENTIONS = {"__all__", "command", "lower", "main"}

ERRORS = {
    "BackendMissingError",
    "Error",
    "InputError",
    "RequirementError",
    "UsageError",
    "VerificationError",
}


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield name, node


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names of a module's functions, classes and constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_function_is_wide() -> None:
    """What takes more takes a record of options."""
    wide = {}
    for name, function in _functions():
        takes = function.args
        count = len(takes.posonlyargs) + len(takes.args) + len(takes.kwonlyargs)
        if count > MOST_PARAMETERS:
            wide[f"{name}: {function.name}"] = count
    assert wide == {}


def test_no_name_has_three_homes() -> None:
    homes = defaultdict(list)
    for name, tree in TREES.items():
        for defined in set(_defined(tree)) - CONVENTIONS:
            homes[defined].append(name)
    assert {name: found for name, found in homes.items() if len(found) > MOST_HOMES} == {}


def _what(call: ast.Call) -> str | None:
    """The first sentence of an error, a stand-in for every value in it; None if it is computed."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    if isinstance(first, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in first.values)
        return "".join(map(str, parts))
    return None


def test_an_error_says_a_whole_sentence() -> None:
    """It begins like one, or with a value, an option or a table; and ends like one."""
    bad = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            what = _what(node) if node.func.id in ERRORS else None
            if what is None:
                continue
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
    direct = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) not in ("read", "resources")
        and (
            node.func.attr == "read_bytes"
            or (node.func.attr == "read_text" and "distribution(" not in ast.unparse(node))
        )
        and "resources." not in ast.unparse(node)
    }
    assert direct <= READ_ELSEWHERE
