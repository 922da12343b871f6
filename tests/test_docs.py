"""The README and the pages of docs/ are true: examples run, tables are those of the code, figures
are measured, links lead somewhere.

The blocks of a page run in order, in a folder of the page. A ``console`` block is lines that start
with ``$ `` (a command) and the output below each; a block that starts with ``# name.py`` or
``# name.toml`` is a file, for all pages; other ``python`` blocks are scripts. The output has to be
equal except where a number depends on the machine or on versions. A comment in front says what a
block needs, a row of ``NEEDS``, or why it is not run. ``bash`` blocks, which are examples, do not
run: commands and flags are checked; in a tutorial each has its reason.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import nbclient
import nbformat
import pytest

import rmsnorm_export
from rmsnorm_export.cli.main import cli
from rmsnorm_export.deploy.settings import TABLES, read_tables
from rmsnorm_export.errors import ExitCode
from rmsnorm_export.lower.forms import STRUCTURAL
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.options import entries
from rmsnorm_export.recognize.refusal import kind_of
from tests import warm
from tests.sample import sampled

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NAMED = re.compile(r"# (\w+\.(?:py|toml))\n")
BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NEEDS: dict[str, tuple[Callable[[pytest.Config], object], str]] = {
    "thorough": (lambda config: config.getoption("--thorough"), "takes long: --thorough"),
    "compiler": (lambda _: shutil.which("c++") and shutil.which("cmake"), "no c++ or no cmake"),
    "tensorrt_rtx": (lambda _: find_spec("tensorrt_rtx"), "TensorRT-RTX is not installed"),
    "TensorRT": (lambda _: os.environ.get("TENSORRT_INCLUDE_DIR"), "no TENSORRT_INCLUDE_DIR"),
    "GPU": (lambda _: shutil.which("nvidia-smi"), "there is no GPU"),
}
"""What a block may need -> whether it is here, and the reason why the block is skipped."""

VARIES = {
    r"\d+\.\d+ s\b": "T s",  # wall-clock time
    r"onnxruntime [\d.]+": "onnxruntime V",
    r"wrote \S*?([^/\s]+) \(.*\)": r"wrote \1",  # absolute path, size
    r"-?\d+(\.\d+)?(e-\d+)? ulp": "U ulp",
    r"(float16 1x16x64) .*(ok|FAILED)": r"\1 \2",  # kernels differ by machine
    r"differs by [\d.]+, [\d.]+ allowed": "differs by D, B allowed",
    r"nodes executed +\d+ +\d+": "nodes executed N N",
    r"KiB with weights +[\d.]+ +[\d.]+": "KiB with weights N N",
    r"within \d+% of its bound": "within P of its bound",
    r" +": " ",
}
"""Patterns whose matches differ between machines, and what stands for them."""


def blocks(page: str, language: str) -> list[str]:
    return [text for _, kind, text in BLOCK.findall(PAGES[page]) if kind == language]


_LISTED = re.findall(r"^(tutorials/\w+)$", PAGES["docs/index.md"], re.MULTILINE)
TUTORIALS = tuple(f"docs/{page}.md" for page in _LISTED)
"""In the order of the site."""

OTHER_PAGES = [
    (page,)
    for page in PAGES
    if page not in TUTORIALS and (blocks(page, "console") or blocks(page, "python"))
]


def missing(mark: str, config: pytest.Config) -> str:
    """Return why a block is not run, or ""."""
    word, _, reason = mark.partition(": ")
    if word == "not run":
        return reason
    needs = reason.split(", ") if word == "needs" else []
    return ", ".join(NEEDS[need][1] for need in needs if not NEEDS[need][0](config))


def table(page: str) -> dict[str, list[str]]:
    """First cell (without backticks) -> the other cells of the first table of a page."""
    rows = re.search(r"(^\|.*\n)+", PAGES[page], re.MULTILINE)
    assert rows, f"no table in {page}"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].splitlines()]
    return {first.strip("`"): rest for first, *rest in cells[2:]}


def stable(text: str) -> list[str]:
    for pattern, replacement in VARIES.items():
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def steps(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block, and the output that it shows."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        yield part.partition("\n")[::2]


MAKE = "python make_model.py"
"""With which tutorials begin."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all pages and the first tutorial's model."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    path = tmp_path_factory.mktemp("docs")
    for _, _, text in itertools.chain.from_iterable(map(BLOCK.findall, PAGES.values())):
        if named := NAMED.match(text):
            (path / named[1]).write_text(text, encoding="utf-8")
    done = _run(MAKE, path)
    assert done.returncode == 0, done.stderr
    return path


def _run(command: str, folder: Path, *, long: bool = False) -> subprocess.CompletedProcess[str]:
    # The commands of the interpreter that runs the tests, as after `pip install`.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(folder), "COLUMNS": "120"}
    words = shlex.split(command)
    shell = long or set(command) & set("|&;<>$*`")  # a process that is warm has minutes
    if words[:1] == ["rmsnorm-export"] and not shell:
        return warm.run(warm.COMMAND, *words[1:], folder=folder, environment=environment)
    if words[:1] == ["python"] and words[1].endswith(".py"):
        script = f"import sys; sys.path.insert(0, '')\n{(folder / words[1]).read_text()}"
        return warm.run(script, folder=folder, environment=environment)
    bash = ["bash", "-c", command]
    return subprocess.run(bash, cwd=folder, env=environment, capture_output=True, text=True)


def run_block(mark: str, kind: str, text: str, folder: Path) -> None:
    if NAMED.match(text):
        return  # a file, which is there
    if kind == "python":
        (folder / "example.py").write_text(text, encoding="utf-8")
        prints = "\n".join(re.findall(r"# prints (.*)", text))
        assert prints
        pairs = [("python example.py", prints)]
    else:
        pairs = list(steps(text))
    for command, expected in pairs:
        if command == MAKE and not expected:
            continue  # the folder was made so
        done = _run(command, folder, long="thorough" in mark)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert stable(done.stdout) == stable(expected) or not expected.strip(), command


@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("pages", [TUTORIALS, *OTHER_PAGES], ids=" ".join)
def test_examples_print_what_the_page_says(
    pages: tuple[str, ...], folder: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Those of all tutorials in one folder, as somebody reads on."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for mark, kind, text in (block for page in pages for block in BLOCK.findall(PAGES[page])):
        if kind in ("console", "python") and not missing(mark, pytestconfig):
            run_block(mark, kind, text, tmp_path)


@pytest.mark.parametrize(
    ("page", "mark"),
    [(page, mark) for page in PAGES for mark, _, _ in BLOCK.findall(PAGES[page]) if mark],
)
def test_a_block_that_is_not_run_has_its_reason(
    page: str, mark: str, pytestconfig: pytest.Config
) -> None:
    if reason := missing(mark, pytestconfig):
        pytest.skip(f"{page}: {reason}")


def test_every_block_of_a_tutorial_runs_or_has_its_reason() -> None:
    for page in (page for page in PAGES if "tutorials/" in page):
        for mark, kind, _ in BLOCK.findall(PAGES[page]):
            starts = "not run: " if kind == "bash" else ("not run: ", "needs: ")
            assert mark.startswith(starts) or (kind != "bash" and not mark), (page, mark)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_flags_are_those_of_the_command_line(page: str) -> None:
    """Those that are only shown, too."""
    context = click.Context(cli)
    lines = "".join(blocks(page, "bash") + blocks(page, "console")).splitlines()
    lines += re.findall(r"`(rmsnorm-export [^`]*|[a-z]+ --[^`]*)`", PAGES[page].replace("\n", " "))
    for line in lines:
        words = line.partition("#")[0].removeprefix("$ ").removeprefix("rmsnorm-export ").split()
        command = cli.get_command(context, words[0]) if words else None
        if command is None:
            assert not line.startswith(("rmsnorm-export ", "$ rmsnorm-export ")), line
            continue
        if isinstance(command, click.Group):
            command = command.commands[words[1]]
        own = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= own | {"--help"}, line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_keys_of_a_pipeline_are_known(page: str, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        (tmp_path / "pipeline.toml").write_text(text, encoding="utf-8")
        assert read_tables(tmp_path / "pipeline.toml")


def test_extras_that_a_page_names_are_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    declared = set(re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE))
    pages = (path for path in ROOT.glob("docs/**/*.[timp]*") if path.suffix != ".pyc")
    texts = [path.read_text(encoding="utf-8") for path in pages]
    named = re.findall(r"(?:'\.|rmsnorm-export)\[([\w,-]+)\]", "".join([*PAGES.values(), *texts]))
    assert len(named) > 5
    assert {extra for one in named for extra in one.split(",")} <= declared


def test_the_reference_of_options_has_every_flag_and_key() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "conf.py"))["options_page"]()
    for name in (one for one in cli.list_commands(click.Context(cli)) if one != "plugin"):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        text = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        flags = [one.opts[-1] for one in command.params if isinstance(one, click.Option)]
        assert [flag for flag in flags if flag not in text] == []
    for name, record in TABLES.items():
        text = page.partition(f"## \\[{name}\\]")[2].partition("\n## ")[0]
        keys = re.findall(r"^`(\w+)`\n: \w.*\.", text, re.MULTILINE)
        assert keys == [entry.key for entry in entries(record) if entry.facts.toml]


POSITION = {"flaw": 2, "spoil": 2, "opaque": 0, "refuse": 1, "refuse_match": 1}
"""Where a function takes the reason."""


def reasons_in_the_code() -> Iterator[str]:
    """Yield every identifier that recognition, the audit or lowering can give as a reason."""
    yield from {*STRUCTURAL, "proof-failed", "not-provable"}  # the last are those of proofs
    package = ROOT / "rmsnorm_export"
    rooms = ("recognize", "audit", "lower")
    for path in (path for room in rooms for path in package.glob(f"{room}/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                texts = node.args[POSITION.get(name, len(node.args)) :][:1]
                yield from (text.value for text in texts if isinstance(text, ast.Constant))
            elif isinstance(node, ast.Tuple):  # passed on: a word, followed by a sentence
                texts = [str(getattr(element, "value", "")) for element in node.elts]
                for word, sentence in itertools.pairwise(texts):
                    if " " in sentence:
                        yield from re.findall(r"^[a-z]+(?:-[a-z]+)*$", word)


def test_every_reason_is_in_the_table() -> None:
    documented = table("docs/reference/reasons.md")
    assert set(documented) == set(reasons_in_the_code())
    for reason, (kind, *_) in documented.items():
        assert kind == kind_of(reason), reason


def test_every_attribute_is_in_the_table() -> None:
    attributes = NormSpec(kind="GatedRMSNorm").attributes()
    attributes |= NormSpec(kind="RotaryRMSNorm").attributes()
    documented = table("docs/reference/operator.md")
    assert list(documented) == sorted(attributes, key=[*NormSpec.__dataclass_fields__].index)
    for name, (default, *_) in documented.items():
        value = attributes[name]
        assert default == (f"{value:g}" if name == "epsilon" else str(value)), name


def test_every_exit_code_and_public_name_is_there() -> None:
    codes = {str(int(code)) for code in ExitCode}
    assert set(table("docs/reference/cli.md")) == codes
    named = set(re.findall(r"\b\w+\b", PAGES["docs/reference/python.md"]))
    assert set(rmsnorm_export.__all__) <= named


def test_every_environment_variable_is_in_the_table() -> None:
    files = [*(ROOT / "rmsnorm_export").rglob("*.py"), *(ROOT / "plugins").rglob("*.[hc]*")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    read = set(re.findall(r"""(?:environ(?:\.get)?[\[(]|getenv\()"(\w+)\"""", code))
    page = PAGES["docs/reference/environment.md"]
    documented = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))
    )
    assert read
    assert {name for name in read if not name.startswith("LD_")} <= documented


def test_figures_are_those_of_the_results() -> None:
    page = (ROOT / "bench" / "results" / "demo.md").read_text(encoding="utf-8").splitlines()
    starts = ("| Qwen3", "| Mamba", "| model", "- 20", "- rmsnorm", "- load")
    lines = PAGES["docs/measured.md"].splitlines()
    quoted = [line for line in lines if line.startswith(starts)]
    assert len(quoted) > 11
    assert [line for line in quoted if line not in page] == []


def test_the_counts_of_the_readme_are_those_of_the_chart() -> None:
    results = json.loads((ROOT / "bench/results/norms.json").read_text(encoding="utf-8"))
    counted = {results["norms"], len(results["models"])}
    counted |= {int(row[key].replace(",", "")) for row in results["rows"] for key in list(row)[1:]}
    chart, below = PAGES["README.md"].partition("norms.svg)")[2].split("\n\n", 2)[:2]
    quoted = [
        int(text.replace(",", "")) for text in re.findall(r"(?<![.\w])\d[\d,]*(?![.\d])", below)
    ]
    assert chart == ""
    assert len(quoted) > 5
    assert set(quoted) <= counted


def test_every_install_with_constraints_has_its_torch_first() -> None:
    """The index of PyPI has no PyTorch of the pinned version for x86-64."""
    lines = {
        page: re.findall(r"^pip install .*", text, re.MULTILINE) for page, text in PAGES.items()
    }
    found = 0
    for page, commands in lines.items():
        for before, command in zip(["", *commands], commands, strict=False):
            extras = re.findall(r"\.\[([\w,-]+)\]", command)
            if "constraints.txt" in command and {"torch", "decoder"} & {*extras[0].split(",")}:
                assert before.startswith("pip install --no-deps torch=="), page
                found += 1
        assert "`pip install -c" not in PAGES[page], page
    assert found == 3


def test_links_lead_somewhere() -> None:
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", text)):
            place = (ROOT / page).parent / link.partition("#")[0]
            assert "://" in link or place.exists(), (page, link)


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason="Sphinx is not installed: pip install '.[docs]'")
    done = _run(f"python -m sphinx -W -q {ROOT / 'docs'} {tmp_path}", ROOT)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "reference" / "api.html").read_text(encoding="utf-8")
    assert len(api) > 50_000
    assert api.count('class="highlight') > 3  # the examples of three packages, and of a class
    assert not set(api) & set("\u201c\u201d\u2013")  # no quotation mark of code, or flag, changed
    for notebook in NOTEBOOKS:  # with what its cells show
        page = (tmp_path / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert 'class="rmsnorm-export"' in page, notebook


@pytest.mark.export
@sampled("path", NOTEBOOKS, [path for path in NOTEBOOKS if path.stem != "decoder"])
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """From its first cell to its last; what it says is in its assertions."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "notebooks are committed without outputs"
    run = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}})
    run.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    shown = [output.data for cell in code for output in cell.outputs if "data" in output]
    results = [data for data in shown if "rmsnorm-export" in data.get("text/html", "")]
    assert results
    assert all(len(data["text/html"]) < 10_000 for data in results)  # a verdict, and no graph
