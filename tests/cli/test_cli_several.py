"""Several models for ``inspect`` and ``optimize``; ``--require`` of inspect; suggestions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest

from .conftest import Run, model


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one.onnx"
    onnx.save(model(1), path)
    return path


def test_inspect_of_several_models_counts_them_all(run: Run, one: Path, three: Path) -> None:
    done = run("inspect", one, three)
    assert done.code == 0
    assert done.text.startswith("4 of 4 RMSNorms can be one node, in 2 graphs\n")
    assert f"\n{one}\n1 of 1 RMSNorm can be one node\n" in done.text
    document = run("inspect", one, three, "--format", "json").json
    assert set(document["reports"]) == {str(one), str(three)}
    assert {Path(file["path"]).name for file in document["provenance"]["inputs"]} == {
        "one.onnx",
        "three.onnx",
    }


def test_inspect_requires(run: Run, three: Path, mixed: Path) -> None:
    assert run("inspect", three, "--require", "all").code == 0
    assert run("inspect", three, "--require", "3").code == 0
    for target in ([], ["--target", "ort"]):
        unmet = run("inspect", three, "--require", "4", *target)
        unmet.assert_error(5, "3 norms can be one node")
    run("inspect", mixed, "--require", "all").assert_error(5, "epsilon-not-constant")
    several = run("inspect", three, mixed, "--require", "all", "-q")
    several.assert_error(5, "mixed.onnx: 2 norms can be one node, 1 refused")
    assert several.text == "5 of 6 RMSNorms can be one node, in 2 graphs\n"
    assert "written" not in several.stderr


def test_a_model_that_cannot_be_read_does_not_hide_the_others(
    run: Run, one: Path, tmp_path: Path
) -> None:
    done = run("inspect", "none.onnx", one, "-q")
    done.assert_error(3, "none.onnx")
    assert done.text == "1 of 1 RMSNorm can be one node, in 1 graph\n"
    done = run("optimize", "none.onnx", one, "-o", "out", "-q")
    done.assert_error(3, "none.onnx")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one.onnx"]
    run("inspect", "none.onnx", "neither.onnx").assert_error(3, "none.onnx")
    run("optimize", "none.onnx", "neither.onnx", "-o", "other").assert_error(3, "none.onnx")
    assert not (tmp_path / "other").exists()


def test_optimize_writes_several_models_to_a_folder(
    run: Run, one: Path, three: Path, mixed: Path, tmp_path: Path
) -> None:
    done = run("optimize", one, three, mixed, "-o", "out", "--require", "all", "-q")
    done.assert_error(5, "mixed.onnx")
    assert done.text == "6 of 7 RMSNorms are one node, in 3 graphs\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one.onnx", "three.onnx"]
    assert [node.op_type for node in onnx.load(tmp_path / "out" / "one.onnx").graph.node].count(
        "RMSNorm"
    ) == 1
    run("optimize", one, three, "-o", "out").assert_error(2, "one.onnx", "--force")
    assert run("optimize", one, three, "-o", "out", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one.onnx", "three.onnx", "-o", "out.onnx"], "folder"),
        (["one.onnx", "three.onnx", "-o", "-"], "folder"),
        (["one.onnx", "-", "-o", "out"], "folder"),
        (["one.onnx", "./one.onnx", "-o", "out"], "same file"),
        (["one.onnx", "three.onnx", "-o", "."], "is the input"),
    ],
)
def test_several_models_need_a_folder_of_their_own(
    run: Run, one: Path, three: Path, arguments: list[str], words: str
) -> None:
    before = sorted(one.parent.iterdir())
    run("optimize", *arguments).assert_error(2, words)
    assert sorted(one.parent.iterdir()) == before
    assert three in before


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["optimise", "one.onnx"], "'optimize'"),
        (["plugin", "buld"], "'build'"),
        (["inspect", "one.onnx", "--taget", "ort"], "'--target'"),
        (["inspect", "one.onnx", "--target", "orrt"], "'ort'"),
        (["inspect", "one.onnx", "--format", "jsn"], "'json'"),
        (["inspect", "oen.onnx"], "'one.onnx'"),
        (["verify", "one.onnx", "one.onx"], "'one.onnx'"),
        (["optimize", "one.onnx", "-o", "x.onnx", "--for", "onnxruntim"], "'onnxruntime'"),
        (["bench", "one.onnx", "--targets", "potable,ort"], "'portable'"),
        (["deploy", "one.toml", "--until", "optimise"], "'optimize'"),
        (["check", "one.engin"], "'one.engine'"),
    ],
)
def test_what_is_mistyped_is_suggested(
    run: Run, one: Path, arguments: list[str], suggested: str
) -> None:
    one.with_suffix(".engine").write_bytes(b"vtrt")
    done = run(*arguments)
    assert done.code in (2, 3)
    assert "id you mean " in done.stderr
    assert suggested in done.stderr


def test_nothing_alike_is_not_suggested(run: Run, one: Path) -> None:
    assert one.exists()
    for arguments in (["inspect", "photograph.jpg"], ["xyz"]):
        assert "id you mean" not in run(*arguments).stderr


def test_the_hook_and_the_action_pass_and_fail_as_the_page_says(
    run: Run, three: Path, mixed: Path
) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install PyYAML")
    page = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pipelines.md"
    hook, action = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
    (entry,) = (h for repo in yaml.safe_load(hook)["repos"] for h in repo["hooks"])
    assert re.search(entry["files"], three.name)
    steps = [step.get("run", "") for step in yaml.safe_load(action)["jobs"]["norms"]["steps"]]
    for line in (entry["entry"], steps[-1].removesuffix("models/*.onnx")):
        program, *arguments = shlex.split(line)
        assert program == "rmsnorm-export"
        assert run(*arguments, three, three).code == 0
        assert run(*arguments, three, mixed).code == 5
