"""The README is true: its examples run, its tables are those of the code, its figures are measured.

An example is a fenced block. ``bash`` blocks are not run. A ``console`` block is lines that start
with ``$ `` (a command) and the output below each; ``python`` blocks are scripts, of which those
that start with ``# name.py`` are saved under that name for the others. The output has to be equal
except where a number depends on the machine or on versions.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmsnorm_export.errors import ExitCode
from rmsnorm_export.lower.forms import STRUCTURAL
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.recognize.refusal import kind_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMED = re.compile(r"# (\w+\.py)\n")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

VARIES = (
    (r"\d+\.\d+ s\b", "T s"),  # wall-clock time
    (r"onnxruntime [\d.]+", "onnxruntime V"),
    (r"wrote \S*?([^/\s]+) \(.*\)", r"wrote \1"),  # absolute path, size
    (r"-?\d+(\.\d+)?(e-\d+)? ulp", "U ulp"),
    (
        r"(float16 1x16x64) .*(ok|FAILED)",
        r"\1 \2",
    ),  # the row of `verify`: kernels differ by machine
    (r"differs by [\d.]+, [\d.]+ allowed", "differs by D, B allowed"),
    (r" +", " "),
)
"""Patterns whose matches differ between machines, and what stands for them."""


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README) if found == language]


def section(heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", README, re.M | re.S)
    assert match, f"the README has no section {heading!r}"
    return match.group(1)


def table(heading: str) -> dict[str, list[str]]:
    """First cell (without backticks) -> the other cells of the first table in a section."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert cells, f"no table in {heading!r}"
    return {first.strip("`"): rest for first, *rest in cells}


def stable(text: str) -> list[str]:
    for pattern, replacement in VARIES:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def steps() -> Iterator[tuple[str, str]]:
    """(command, expected output) of every console block, in order."""
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's files, where its script has made its model."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    path = tmp_path_factory.mktemp("readme")
    named = {found[1]: text for text in blocks("python") if (found := NAMED.match(text))}
    assert set(named) == {"make_model.py", "blocks.py", "break_it.py"}
    for name, text in named.items():
        (path / name).write_text(text, encoding="utf-8")
    done = _run("python make_model.py", path)
    assert done.returncode == 0, done.stderr
    return path


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # The commands of the interpreter that runs the tests, as after `pip install`.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.export
@pytest.mark.slow
def test_examples_print_what_the_readme_says(folder: Path) -> None:
    commands = list(steps())
    assert sum(command.startswith("rmsnorm-export") for command, _ in commands) >= 4
    for command, expected in commands:
        done = _run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if expected.strip():
            assert stable(done.stdout) == stable(expected), command
    others = [text for text in blocks("python") if not NAMED.match(text)]
    assert len(others) >= 3
    for script in others:
        (folder / "example.py").write_text(script, encoding="utf-8")
        done = _run("python example.py", folder)
        assert done.returncode == 0, done.stderr
        said = re.findall(r"# prints (.*)", script)
        assert said
        assert stable(done.stdout) == stable("\n".join(said))


def reasons_in_the_code() -> set[str]:
    """Every identifier that recognition or lowering can give as a reason."""
    position = {"flaw": 2, "spoil": 2, "_opaque": 2, "refuse": 1, "refuse_match": 1}
    found: set[str] = set()
    for package in ("recognize", "lower"):
        for path in sorted((ROOT / "rmsnorm_export" / package).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    index = position.get(name)
                    arguments = node.args[index : index + 1] if index is not None else []
                    found |= {a.value for a in arguments if isinstance(a, ast.Constant)}
                elif isinstance(node, ast.Tuple):
                    found |= set(_reason_of_a_tuple(node))
    return found | STRUCTURAL | {"proof-failed", "not-provable"}  # those of proofs


def _reason_of_a_tuple(node: ast.Tuple) -> Iterator[str]:
    """Reasons that are passed on in tuples: first of the words, followed by a sentence."""
    texts = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
    for word, sentence in itertools.pairwise(texts):
        if isinstance(word, str) and isinstance(sentence, str) and " " in sentence:
            yield from re.findall(r"^[a-z]+(?:-[a-z]+)*$", word)


def test_every_reason_is_in_the_table() -> None:
    documented = table("Reasons")
    assert set(documented) == reasons_in_the_code()
    for reason, (kind, *_) in documented.items():
        assert kind == kind_of(reason), reason


def test_every_attribute_is_in_the_table() -> None:
    attributes = NormSpec(kind="GatedRMSNorm").attributes()
    documented = table("The operator")
    assert list(documented) == list(attributes)
    for name, (default, *_) in documented.items():
        value = attributes[name]
        assert default == (f"{value:g}" if name == "epsilon" else str(value)), name


def test_every_exit_code_is_in_the_table() -> None:
    codes = {str(int(code)) for code in ExitCode}
    assert set(table("Exit codes and JSON")) == codes | {"130", "141"}


def test_every_public_name_is_named() -> None:
    import rmsnorm_export

    named = set(re.findall(r"\b\w+\b", section("Python")))
    assert set(rmsnorm_export.__all__) <= named


def test_figures_are_those_of_the_results() -> None:
    made: list[str] = []
    for name, module in (
        ("bench_optimize", "bench.optimize_report"),
        ("demo", "demonstration.report"),
    ):
        result = ROOT / "scripts" / "results" / f"{name}.json"
        report = json.loads(result.read_text(encoding="utf-8"))
        page = importlib.import_module(f"scripts.{module}").markdown(report)
        assert result.with_suffix(".md").read_text(encoding="utf-8") == page
        made += page.splitlines()
    quoted = [
        line for line in section("What was measured").splitlines() if line.startswith(("|", "- "))
    ]
    assert len(quoted) > 10
    assert [line for line in quoted if line not in made] == []


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link.partition("#")[0]).exists(), link
