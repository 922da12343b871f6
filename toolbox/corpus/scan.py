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


def scan() -> list[Candidate]:
    """Return every class of the modelling files that could be a norm, in file order."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    root = pathlib.Path(spec.origin).parent
    candidates: list[Candidate | None] = []
    for path in sorted(root.glob("models/*/modeling_*.py")):
        module = "transformers." + ".".join(path.relative_to(root).with_suffix("").parts)
        blocks = _class_blocks(path.read_text(encoding="utf-8"))
        candidates += [_candidate(module, block) for block in blocks]
    return [candidate for candidate in candidates if candidate is not None]


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
    pieces, outside, names = [], set(), ["forward"]
    for name in names:  # which grows
        pieces.append(_normalised(methods[name]))
        called = re.findall(r"self\.(\w+)\(", pieces[-1])
        outside |= {own for own in called if own not in methods}
        names += [own for own in dict.fromkeys(called) if own in methods and own not in names]
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
    """Return ``source`` with parameters and local variables numbered in order of appearance."""
    tree = ast.parse(source)
    for function in tree.body:
        names: dict[str, str] = {}
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.arg | ast.Name)]
        for node in nodes:
            name = node.arg if isinstance(node, ast.arg) else node.id
            local = name != "self" if isinstance(node, ast.arg) else isinstance(node.ctx, ast.Store)
            if local:
                names.setdefault(name, f"v{len(names)}")
        for node in nodes:
            field = "arg" if isinstance(node, ast.arg) else "id"
            setattr(node, field, names.get(getattr(node, field), getattr(node, field)))
    return ast.unparse(tree)
