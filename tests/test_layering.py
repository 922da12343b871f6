"""The shape of the house: who may import whom, what is public, how long a file is.

Of the tests' tools and of bench/: no circles, and no test is imported.

The imports are read from the syntax tree, so that one inside a function or under TYPE_CHECKING
counts as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import rmsnorm_export

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rmsnorm_export"

FLOORS = [
    "errors", "printable", "records", "system", "options", "op", "recognize", "runtime",
    "graph", "lower", "proof", "audit", "health", "quantize", "precision", "rewrite",
    "torch_options", "torch", "tensorrt", "compare", "decoder", "api", "benchmark",
    "deploy", "diagnosis", "show", "cli",
]  # fmt: skip
"""From the ground up: imports stay on a floor or go down this list."""

SEEN_BY = {"show": {"cli"}}
"""Floor -> the only other floors of the package that may import it."""

LOOKED_UP = {("rmsnorm_export.system.shown", "rmsnorm_export.show")}
"""The one call that goes up: a result that is asked to show itself finds out by name who does."""

# The package itself is the public API, for the command line as for everyone.
MAY_IMPORT_ROOT = {"cli"}

PUBLIC = [
    "BackendMissingError", "Benchmark", "Deployment", "EngineResult", "Error", "ExportResult",
    "InputError", "Packaged", "Refusal", "Report", "RequirementError", "Result", "Site",
    "UsageError", "Verification", "VerificationError", "bench", "build_engine", "doctor", "export",
    "export_generation", "inspect", "optimize", "package_model", "plugin", "run_pipeline",
    "session_options", "verify",
]  # fmt: skip


def _named(folder: Path) -> dict[str, Path]:
    """Dotted name -> file, for every module below a folder."""
    names = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = _named(PACKAGE)
OWN = {"toolbox": ("toolbox",), "bench": ("toolbox", "bench"), "tests": ("toolbox", "tests.tools")}
"""What measures and what the tests are made with, and what of these each may import."""
_PLACES = (ROOT / "toolbox", ROOT / "bench", ROOT / "tests" / "tools")
TOOLS = {name: path for place in _PLACES for name, path in _named(place).items()}
EVERY = MODULES | TOOLS


def _imported(
    name: str, path: Path, tops: Collection[str] = ("rmsnorm_export",)
) -> Iterator[tuple[int, str]]:
    """(line, dotted name of a module of the packages ``tops``) for every import in the file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            # `from package import name` means the module of that name where there is one.
            targets = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in EVERY else base
                for alias in node.names
            ]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            targets = [str(node.args[0].value)]
            if targets[0].startswith("."):
                targets = [package + targets[0]]
        else:
            continue
        for target in targets:
            if target.split(".")[0] in tops:
                yield node.lineno, target


def _floor(name: str) -> str:
    """The floor of a module of the package; "" for the package itself."""
    first = name.partition(".")[2].split(".")[0]
    return "cli" if first == "__main__" else first


def _circles(below: dict[str, set[str]]) -> list[str]:
    """The modules that are left when those that import none of the others are taken away."""
    while free := [name for name, targets in below.items() if not targets & below.keys() - {name}]:
        for name in free:
            del below[name]
    return sorted(below)


def test_the_floors_are_the_tree() -> None:
    assert {_floor(name) for name in MODULES if "." in name} == set(FLOORS)


def test_no_modules_import_each_other_in_a_circle() -> None:
    below = {
        name: {target for _, target in _imported(name, path)}
        for name, path in MODULES.items()
        # The package names everything, lazily; a folder's own page may name what is in it.
        if path.name != "__init__.py"
    }
    assert _circles(below) == []
    assert _circles({"a": {"b"}, "b": {"a"}, "c": set()}) == ["a", "b"]


@pytest.mark.parametrize("name", [name for name in MODULES if "." in name])
def test_imports_point_one_way(name: str) -> None:
    """Down, and at nothing that only others may see."""
    floor, upward = _floor(name), []
    for line, target in _imported(name, MODULES[name]):
        other = _floor(target)
        if not other:
            allowed = floor in MAY_IMPORT_ROOT
        else:
            allowed = FLOORS.index(other) <= FLOORS.index(floor)
            allowed = allowed and floor in {other, *SEEN_BY.get(other, FLOORS)}
        if not allowed and (name, target) not in LOOKED_UP:
            upward.append(f"line {line} imports {target}")
    assert upward == []


OF_TRANSFORMERS = "torch.source.huggingface"
"""The loader of a folder of Hugging Face, the one module below ``decoder`` that imports it."""


def test_nothing_below_the_decoder_knows_transformers() -> None:
    below = FLOORS[: FLOORS.index("decoder")]
    importers = {
        name.partition(".")[2]
        for name, path in MODULES.items()
        if _floor(name) in below and [*_imported(name, path, ("transformers",))]
    }
    assert importers == {OF_TRANSFORMERS}


OF_DECODERS = re.compile(
    r"past_key_values|attention_mask|position_ids|prefill|prompt|(kv|use)_cache"
)


def test_nothing_below_the_decoder_speaks_of_caches_masks_or_prompts() -> None:
    below = FLOORS[: FLOORS.index("decoder")]
    files = [path for name, path in MODULES.items() if _floor(name) in below]
    speak = {path.stem for path in files if OF_DECODERS.search(path.read_text(encoding="utf-8"))}
    assert speak == {OF_TRANSFORMERS.rpartition(".")[2]}  # which switches the cache off


WITHOUT = """
import sys
sys.modules["transformers"] = None  # an import of it fails, as of a release that is broken
import onnx.parser, rmsnorm_export as rx
text = '<ir_version: 8, opset_import: ["" : 17]> main (float[N, 8] x) => (float[N, 8] y) \
<float two = {2}, float e = {1e-6}> { s = Pow(x, two) m = ReduceMean<axes = [-1]>(s) \
t = Add(m, e) r = Sqrt(t) y = Div(x, r) }'
model = onnx.parser.parse_model(text)
result = rx.optimize(model, prove=True)
assert len(result.report.fused) == len(rx.inspect(model, health=True).fused) == 1
assert rx.verify(model, result.model).passed
"""


def test_the_core_needs_no_transformers() -> None:
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tools_import_each_other_in_no_circle() -> None:
    below = {
        name: {target for _, target in _imported(name, path, tuple(OWN))}
        for name, path in TOOLS.items()
    }
    assert _circles(below) == []


@pytest.mark.parametrize("name", TOOLS)
def test_tools_import_no_bench_and_no_test(name: str) -> None:
    """``bench`` and the tools of the tests share the toolbox, and nothing of each other's."""
    others = [target for _, target in _imported(name, TOOLS[name], tuple(OWN))]
    assert [t for t in others if not t.startswith(OWN[name.partition(".")[0]])] == []


def test_public_names() -> None:
    assert sorted(rmsnorm_export.__all__) == sorted(PUBLIC)
    assert [name for name in PUBLIC if getattr(rmsnorm_export, name, None) is None] == []
    assert set(PUBLIC) <= set(dir(rmsnorm_export))


def test_no_file_is_long() -> None:
    folders = (PACKAGE, ROOT / "bench", ROOT / "tests", ROOT / "toolbox")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    suffixes = {".cu", ".cuh", ".cpp", ".h"}
    files += [path for path in (ROOT / "plugins").rglob("*") if path.suffix in suffixes]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert [path for path, text in texts.items() if len(text.splitlines()) >= 500] == []
