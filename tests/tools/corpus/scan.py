"""Find the norm classes of the installed ``transformers`` by reading its sources.

Importing all of its modelling files takes minutes; cutting the class blocks out of the text and
parsing only those that look like a norm takes a second. What a class computes is not decided here
(see ``classify``): a candidate is any class that could be a norm.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import pathlib
import re
import textwrap
from collections.abc import Iterator

_CLASS = re.compile(r"^([ \t]*)class (\w+)\b", re.MULTILINE)
_NAMED = re.compile(r"Norm(?!al)|CMVN")
_COMPUTES = re.compile(r"rsqrt|rms_norm\(")
_NUMERIC = re.compile(r"rsqrt|_norm\(|\.norm\(|\bmean\b|\bvar\b|weight|super\(\)|Norm\.forward")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One class that may be a norm.

    Attributes:
        module: dotted module name.
        name: class name.
        source: normalised text of ``forward`` and of the methods that it calls: no docstrings,
            annotations or decorators.
        submodules: names that ``forward`` calls on ``self`` and that are no methods of the class
            (child modules, usually).
    """

    module: str
    name: str
    source: str
    submodules: tuple[str, ...]

    @property
    def body(self) -> str:
        """Hash of the source with local names replaced: equal for the same computation."""
        return hashlib.sha256(_canonical(self.source).encode()).hexdigest()[:12]


def scan(root: pathlib.Path | None = None) -> list[Candidate]:
    """Every class of the modelling files that could be a norm, in file order.

    Args:
        root: folder of the ``transformers`` package; None: the installed one.

    Raises:
        ModuleNotFoundError: ``transformers`` is not installed.
    """
    if root is None:
        spec = importlib.util.find_spec("transformers")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("transformers is not installed: pip install transformers")
        root = pathlib.Path(spec.submodule_search_locations[0])
    found: list[Candidate] = []
    for path in sorted(root.glob("models/*/modeling_*.py")):
        module = "transformers." + ".".join(path.relative_to(root).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        for block in _class_blocks(text):
            candidate = _candidate(module, block)
            if candidate is not None:
                found.append(candidate)
    return found


def _class_blocks(text: str) -> Iterator[str]:
    """The text of each class, dedented; classes inside ``if`` and ``else`` included."""
    starts = list(_CLASS.finditer(text))
    for i, match in enumerate(starts):
        end = starts[i + 1].start() if i + 1 < len(starts) else len(text)
        block = text[match.start() : end]
        if not (_NAMED.search(match[2]) or _COMPUTES.search(block)):
            continue
        indent = len(match[1])
        lines = block.splitlines()
        kept = [lines[0]]
        for line in lines[1:]:
            if line.strip() and len(line) - len(line.lstrip()) <= indent and line.strip() != "):":
                break
            kept.append(line)
        yield textwrap.dedent("\n".join(kept))


def _candidate(module: str, block: str) -> Candidate | None:
    try:
        node = ast.parse(block).body[0]
    except SyntaxError:
        return None  # the header spans lines in a way that the cut does not follow: no norm does
    if not isinstance(node, ast.ClassDef):
        return None
    methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
    if "forward" not in methods:
        return None
    pieces, outside = [], set()
    todo, seen = ["forward"], {"forward"}
    while todo:
        piece = _normalised(methods[todo.pop(0)])
        pieces.append(piece)
        for called in re.findall(r"self\.(\w+)\(", piece):
            if called not in methods:
                outside.add(called)
            elif called not in seen:
                seen.add(called)
                todo.append(called)
    source = "\n".join(pieces)
    named = _NAMED.search(node.name) and _NUMERIC.search(source)
    if not (named or _COMPUTES.search(source)):
        return None
    return Candidate(module, node.name, source, tuple(sorted(outside)))


def _normalised(function: ast.FunctionDef) -> str:
    function = ast.parse(ast.unparse(function)).body[0]  # type: ignore[assignment]  # a copy
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        function.body = function.body[1:] or [ast.Pass()]
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
    function.returns = None
    function.decorator_list = []
    return ast.unparse(function)


def _canonical(source: str) -> str:
    """``source`` with parameters and local variables numbered in order of appearance."""
    tree = ast.parse(source)
    for function in tree.body:
        names: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.arg) and node.arg != "self":
                names.setdefault(node.arg, f"v{len(names)}")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, f"v{len(names)}")
        for node in ast.walk(function):
            if isinstance(node, ast.arg):
                node.arg = names.get(node.arg, node.arg)
            elif isinstance(node, ast.Name):
                node.id = names.get(node.id, node.id)
    return ast.unparse(tree)
