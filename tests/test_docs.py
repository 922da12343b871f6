"""The README and the pages of docs/ are true: examples run, tables are those of the code, figures
are measured, links lead somewhere.

An example is a fenced block. A ``console`` block is lines that start with ``$ `` (a command) and
the output below each; ``python`` blocks are scripts, of which those that start with ``# name.py``
are saved under that name for all pages. The output has to be equal except where a number depends
on the machine or on versions. Of ``bash`` blocks, which install or take long, commands and flags
are checked.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmsnorm_export.cli.main import cli
from rmsnorm_export.deploy.read import read_tables
from rmsnorm_export.errors import ExitCode
from rmsnorm_export.lower.forms import STRUCTURAL
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.recognize.refusal import kind_of
from tests import warm

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
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


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGES[page]) if found == language]


def table(page: str) -> dict[str, list[str]]:
    """First cell (without backticks) -> the other cells of the first table of a page."""
    lines = PAGES[page].splitlines()
    rows = itertools.takewhile(
        lambda line: line.startswith("|"), itertools.dropwhile(lambda x: x[:1] != "|", lines)
    )
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows][2:]
    assert cells, f"no table in {page}"
    return {first.strip("`"): rest for first, *rest in cells}


def stable(text: str) -> list[str]:
    for pattern, replacement in VARIES:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def steps(page: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of every console block of a page, in order."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all pages and the first tutorial's model."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    path = tmp_path_factory.mktemp("docs")
    scripts = [text for page in PAGES for text in blocks(page, "python")]
    named = {found[1]: text for text in scripts if (found := NAMED.match(text))}
    assert set(named) == {"make_model.py", "blocks.py", "break_it.py"}
    for name, text in named.items():
        (path / name).write_text(text, encoding="utf-8")
    done = _run("python make_model.py", path)
    assert done.returncode == 0, done.stderr
    return path


RUN_FILE = "import runpy, sys\nrunpy.run_path(sys.argv[1], run_name='__main__')"


def _run(command: str, folder: Path, real: bool = False) -> subprocess.CompletedProcess[str]:
    # The commands of the interpreter that runs the tests, as after `pip install`.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(folder), "COLUMNS": "120"}
    words = [] if real else shlex.split(command)
    if words[:1] in (["python"], ["rmsnorm-export"]) and not set(command) & set("|&;<>$*`"):
        program = RUN_FILE if words[0] == "python" else warm.COMMAND
        return warm.run(
            program, *words[1:], folder=folder, environment=environment, imports=warm.EXPORT
        )
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


RUN = [page for page in PAGES if blocks(page, "console") or blocks(page, "python")]


@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_examples_print_what_the_page_says(page: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for command, expected in steps(page):
        done = _run(command, tmp_path, real=page == "README.md")
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if expected.strip():
            assert stable(done.stdout) == stable(expected), command
    for script in blocks(page, "python"):
        if NAMED.match(script):
            continue
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        done = _run("python example.py", tmp_path)
        assert done.returncode == 0, done.stderr
        said = re.findall(r"# prints (.*)", script)
        assert said
        assert stable(done.stdout) == stable("\n".join(said))


def test_enough_is_run() -> None:
    assert {"README.md", "docs/tutorials/onnxruntime.md", "docs/guides/pytorch.md"} <= set(RUN)
    commands = [command for page in RUN for command, _ in steps(page)]
    assert sum(command.startswith("rmsnorm-export") for command in commands) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_flags_are_those_of_the_command_line(page: str) -> None:
    """Those that are only shown, too."""
    context = click.Context(cli)
    lines = [line for language in ("bash", "console") for text in blocks(page, language)
             for line in text.splitlines()]  # fmt: skip
    lines += re.findall(r"`(rmsnorm-export [^`]*|[a-z]+ --[^`]*)`", PAGES[page].replace("\n", " "))
    for line in lines:
        words = line.partition("#")[0].removeprefix("$ ").removeprefix("rmsnorm-export ").split()
        command = cli.get_command(context, words[0]) if words else None
        if command is None:
            assert not line.startswith(("rmsnorm-export ", "$ rmsnorm-export ")), line
            continue
        if isinstance(command, click.Group):
            command = command.commands[words[1]]
        known = {flag for parameter in command.params for flag in
                 (*parameter.opts, *parameter.secondary_opts)} | {"--help"}  # fmt: skip
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= known, line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_keys_of_a_pipeline_are_known(page: str, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        (tmp_path / "pipeline.toml").write_text(text, encoding="utf-8")
        assert read_tables(tmp_path / "pipeline.toml")


def reasons_in_the_code() -> set[str]:
    """Every identifier that recognition or lowering can give as a reason."""
    position = {"flaw": 2, "spoil": 2, "opaque": 0, "refuse": 1, "refuse_match": 1}
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
    documented = table("docs/reference/reasons.md")
    assert set(documented) == reasons_in_the_code()
    for reason, (kind, *_) in documented.items():
        assert kind == kind_of(reason), reason


def test_every_attribute_is_in_the_table() -> None:
    attributes = NormSpec(kind="GatedRMSNorm").attributes()
    attributes |= NormSpec(kind="RotaryRMSNorm").attributes()
    documented = table("docs/reference/operator.md")
    assert list(documented) == list(attributes)
    for name, (default, *_) in documented.items():
        value = attributes[name]
        assert default == (f"{value:g}" if name == "epsilon" else str(value)), name


def test_every_exit_code_is_in_the_table() -> None:
    codes = {str(int(code)) for code in ExitCode}
    assert set(table("docs/reference/cli.md")) == codes | {"130", "141"}


def test_every_public_name_is_named() -> None:
    import rmsnorm_export

    named = set(re.findall(r"\b\w+\b", PAGES["docs/reference/python.md"]))
    assert set(rmsnorm_export.__all__) <= named


def test_figures_are_those_of_the_results() -> None:
    page = (ROOT / "bench" / "results" / "demo.md").read_text(encoding="utf-8").splitlines()
    quoted = [
        line
        for line in PAGES["docs/measured.md"].splitlines()
        if line.startswith(("| Qwen3", "| Mamba", "| model", "- 20", "- rmsnorm", "- load"))
    ]
    assert len(quoted) > 11
    assert [line for line in quoted if line not in page] == []


def test_links_lead_somewhere() -> None:
    found = 0
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", text)):
            if "://" not in link:
                found += 1
                assert (ROOT / page).parent.joinpath(link.partition("#")[0]).exists(), (page, link)
    assert found > 25


def test_every_page_is_in_the_contents() -> None:
    named = set(re.findall(r"^[\w/-]+$", PAGES["docs/index.md"], re.M))
    pages = {page[len("docs/") : -len(".md")] for page in PAGES if page.startswith("docs/")}
    pages |= {f"notebooks/{path.stem}" for path in NOTEBOOKS}
    assert named >= pages - {"index"}


def test_the_readme_is_read_in_one_go() -> None:
    assert PAGES["README.md"].count("\n") <= 150


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason="Sphinx is not installed: pip install '.[docs]'")
    done = _run(f"python -m sphinx -W -q {ROOT / 'docs'} {tmp_path}", ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "api.html").stat().st_size > 50_000


@pytest.mark.export
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.thorough if path.stem == "decoder" else [], id=path.stem)
     for path in NOTEBOOKS],
)  # fmt: skip
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """From its first cell to its last; what it says is in its assertions."""
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "notebooks are committed without outputs"
    run = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}})
    run.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    shown = [output.data for cell in code for output in cell.outputs if "data" in output]
    results = [data for data in shown if "rmsnorm-export" in data.get("text/html", "")]
    assert results
    assert all(len(data["text/html"]) < 10_000 for data in results)  # a verdict, and no graph
    assert all("\n" not in data["text/plain"] for data in results)
    assert any("assert " in cell.source for cell in code)
