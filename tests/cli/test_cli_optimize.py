"""``optimize`` as a program: output, reports, exit codes; nothing else is touched."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper

import rmsnorm_export
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report

from .conftest import Run, model


def op_types(path: Path) -> list[str]:
    loaded = onnx.load(path)
    onnx.checker.check_model(loaded)
    return [node.op_type for node in loaded.graph.node]


@pytest.mark.parametrize(
    ("target", "op"),
    [
        ("portable", "RMSNorm"),
        ("onnx", "RMSNormalization"),
        ("ort", "SimplifiedLayerNormalization"),
    ],
)
def test_every_norm_is_one_node(run: Run, three: Path, target: str, op: str) -> None:
    before = three.read_bytes()
    done = run("optimize", three, "-o", "out.onnx", "--target", target, "--require", "all")
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("3 of 3 RMSNorms are one node\n")
    assert f"3 x  {op}  float32  n=40  epsilon=1e-05  exact" in done.text
    assert "/layers.{0-2}/norm/" in done.text
    out = three.parent / "out.onnx"
    assert f"wrote {out} (" in done.text
    loaded = [node.op_type for node in onnx.load(out).graph.node]
    assert loaded.count(op) == 3
    assert "ReduceMean" not in loaded
    assert three.read_bytes() == before
    assert sorted(p.name for p in three.parent.iterdir()) == ["out.onnx", "three.onnx"]


def test_the_nodes_of_the_definition_are_not_counted(run: Run, three: Path) -> None:
    counts = {}
    for target in ("portable", "onnx"):
        out = f"{target}.onnx"
        report = run("optimize", three, "-o", out, "--target", target, "--format", "json").json
        counts[target] = (report["nodes_before"], report["nodes_after"], report["functions"])
        assert report["nodes_after"] == len(onnx.load(out).graph.node)
    assert counts == {"portable": (25, 7, 1), "onnx": (25, 7, 0)}
    assert ": opset 18, 25 nodes -> 7 + 1 function\n" in run("optimize", three, "-o", "t.onnx").text
    again = run("inspect", "portable.onnx", "--format", "json").json
    assert (again["nodes_before"], again["nodes_after"]) == (7, 7)


def test_progress_is_told_site_by_site(three: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    rmsnorm_export.optimize(
        three, prove=True, progress=lambda what, done, total: calls.append((what, done, total))
    )
    assert calls == [("proving", done, 3) for done in range(4)]
    rmsnorm_export.optimize(three, progress=lambda *_: calls.clear())
    assert len(calls) == 4


def test_json_is_one_document_that_reads_back(run: Run, mixed: Path) -> None:
    done = run("optimize", mixed, "-o", "out.onnx", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    document = done.json
    assert list(document)[:2] == ["schema_version", "kind"]
    report = from_json(done.text, Report)
    assert (len(report.fused), len(report.refused)) == (2, 1)
    assert report.refused[0].reason == "epsilon-not-constant"
    assert document["output"]["path"] == str(mixed.parent / "out.onnx")
    assert document["output"]["bytes"] == (mixed.parent / "out.onnx").stat().st_size
    assert document["output"]["weights"] == "none"
    assert "error" not in document


def test_model_through_a_pipe(run: Run, three: Path) -> None:
    done = run("optimize", "-", "-o", "-", stdin=three.read_bytes())
    assert done.code == 0
    piped = onnx.load_model_from_string(done.stdout)
    assert [node.op_type for node in piped.graph.node].count("RMSNorm") == 3
    assert done.stderr.startswith("3 of 3 RMSNorms are one node")
    assert "\n  stdin: opset 18, " in done.stderr
    assert done.stderr.endswith("to stdout\n")


def test_with_the_model_on_stdout_the_document_is_all_of_stderr(run: Run, mixed: Path) -> None:
    done = run("optimize", mixed, "-o", "-", "--format", "json")
    onnx.load_model_from_string(done.stdout)
    document = json.loads(done.stderr)
    assert document["output"] == {"path": "-", "bytes": len(done.stdout)}
    unmet = run("optimize", mixed, "-o", "-", "--format", "json", "--require", "all")
    assert (unmet.code, unmet.stdout) == (5, b"")
    assert json.loads(unmet.stderr)["error"]["exit_code"] == 5
    missing = run("optimize", "missing.onnx", "-o", "-", "--format", "json")
    assert (missing.code, missing.stdout) == (3, b"")
    assert json.loads(missing.stderr)["kind"] == "error"


def test_an_existing_output_is_replaced_only_by_force(run: Run, three: Path) -> None:
    out = three.parent / "out.onnx"
    out.write_bytes(b"precious")
    run("optimize", three, "-o", out).assert_error(2, "--force")
    assert out.read_bytes() == b"precious"
    assert run("optimize", three, "-o", out, "--force").code == 0
    assert "RMSNorm" in op_types(out)


def test_the_source_is_not_overwritten(run: Run, three: Path) -> None:
    before = three.read_bytes()
    run("optimize", three, "-o", three).assert_error(2, "input")
    assert three.read_bytes() == before


@pytest.mark.parametrize("require", ["1", "2", "002"])
def test_require_is_met(run: Run, mixed: Path, require: str) -> None:
    assert run("optimize", mixed, "-o", "out.onnx", "--require", require).code == 0


@pytest.mark.parametrize("require", ["3", "all"])
def test_require_is_not_met(run: Run, mixed: Path, require: str) -> None:
    done = run("optimize", mixed, "-o", "out.onnx", "--require", require)
    done.assert_error(5, f"--require {require}", "2 norms", "epsilon-not-constant")
    assert "nothing was written" in done.text
    assert not (mixed.parent / "out.onnx").exists()
    as_json = run("optimize", mixed, "-o", "out.onnx", "--require", require, "--format", "json")
    as_json.assert_error(5)
    assert as_json.json["output"] is None
    assert as_json.json["error"]["exit_code"] == 5
    assert as_json.json["refused"][0]["node"] == "/odd.0/norm/Add_2"


def test_require_all_of_a_model_without_norms_fails(run: Run, tmp_path: Path) -> None:
    onnx.save(model(0), tmp_path / "none.onnx")
    run("optimize", "none.onnx", "-o", "out.onnx", "--require", "all").assert_error(5, "0 norms")
    done = run("optimize", "none.onnx", "-o", "out.onnx")
    assert (done.code, done.text.splitlines()[0][:16]) == (0, "no RMSNorm found")


@pytest.mark.parametrize("require", ["0", "-1", "some", "1.5", "", "9" * 30, "\u0663"])
def test_require_takes_a_number_or_all(run: Run, three: Path, require: str) -> None:
    done = run("optimize", three, "-o", "out.onnx", f"--require={require}")
    done.assert_error(2, "--require")


def test_prove_says_what_was_seen(run: Run, three: Path) -> None:
    done = run("optimize", three, "-o", "out.onnx", "--prove", "--seed", "7")
    assert done.code == 0, done.stderr
    assert "proofs: 3 of 3 sites hold, computed by onnxruntime" in done.text
    again = run("optimize", three, "-o", "o.onnx", "--prove", "--format", "json")
    assert all(site["proof"]["passed"] for site in again.json["fused"])


def test_report_file(run: Run, mixed: Path) -> None:
    folder = mixed.parent
    done = run("optimize", mixed, "-o", "a.onnx", "--report", "r.json")
    assert done.text.startswith("2 of 3")
    written = (folder / "r.json").read_text()
    assert len(from_json(written, Report).fused) == 2
    done = run("optimize", mixed, "-o", "b.onnx", "--report", "r.txt", "--format", "json")
    assert done.json["kind"] == "report"
    assert (
        (folder / "r.txt")
        .read_text()
        .startswith("2 of 3 RMSNorms are one node: 2 fused, 1 refused")
    )
    taken = run("optimize", mixed, "-o", "c.onnx", "--report", "r.json")
    taken.assert_error(2, "r.json exists", "--force")
    assert (folder / "r.json").read_text() == written
    assert not (folder / "c.onnx").exists()
    assert run("optimize", mixed, "-o", "c.onnx", "--report", "r.json", "--force").code == 0
    unmet = run("optimize", mixed, "-o", "d.onnx", "--report", "u.json", "--require", "all")
    assert unmet.code == 5
    assert json.loads((folder / "u.json").read_text())["error"]["exit_code"] == 5
    assert run("optimize", mixed, "-o", "e.onnx", "--report", "/dev/null").code == 0
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("report", "code", "word"),
    [
        ("-", 2, "--report -"),
        ("three.onnx", 2, "overwrite a model"),
        ("./out.onnx", 2, "overwrite a model"),
        ("missing/r.json", 3, "no folder missing"),
        (".", 3, "folder"),
    ],
)
def test_report_file_that_cannot_be(
    run: Run, three: Path, report: str, code: int, word: str
) -> None:
    before = three.read_bytes()
    done = run("optimize", three, "-o", "out.onnx", "--force", "--report", report)
    done.assert_error(code, word)
    assert three.read_bytes() == before
    assert not (three.parent / "out.onnx").exists()


@pytest.mark.parametrize("weights", ["auto", "reference", "link", "copy", "embed"])
def test_the_report_says_what_became_of_the_weights(run: Run, tmp_path: Path, weights: str) -> None:
    proto = model(1, n=1024)
    external_data_helper.convert_model_to_external_data(
        proto, location="w.data", size_threshold=1024
    )
    onnx.save(proto, tmp_path / "m.onnx")
    data = (tmp_path / "w.data").read_bytes()
    done = run("optimize", "m.onnx", "-o", "out.onnx", "--weights", weights, "--format", "json")
    assert done.code == 0, done.stderr
    assert done.json["output"]["weights"] in ("reference", "link", "copy", "embed")
    text = run("optimize", "m.onnx", "-o", "out2.onnx", "--weights", weights).text
    assert "weights" in text.split("wrote ")[1]
    assert (tmp_path / "w.data").read_bytes() == data
    loaded = onnx.load(tmp_path / "out.onnx")
    weight = next(t for t in loaded.graph.initializer if t.name == "weight")
    assert onnx.numpy_helper.to_array(weight).tobytes() == data


def test_external_weights_and_stdout(run: Run, tmp_path: Path) -> None:
    proto = model(1, n=1024)
    external_data_helper.convert_model_to_external_data(
        proto, location="w.data", size_threshold=1024
    )
    onnx.save(proto, tmp_path / "m.onnx")
    refused = run("optimize", "m.onnx", "-o", "-")
    refused.assert_error(2, "--weights embed")
    assert refused.stdout == b""
    done = run("optimize", "m.onnx", "-o", "-", "--weights", "embed")
    assert done.code == 0, done.stderr
    piped = onnx.load_model_from_string(done.stdout)
    assert not any(external_data_helper.uses_external_data(t) for t in piped.graph.initializer)


def test_hostile_names_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    proto = model(1, refused=1)
    for node in proto.graph.node:
        node.name = "\x1b]0;owned\x07\r\n\u202e" + node.name
    onnx.save(proto, tmp_path / "m.onnx")
    for arguments in (["-v"], [], ["--require", "all"], ["--format", "json"]):
        done = run("optimize", "m.onnx", "-o", "o.onnx", "--force", *arguments)
        for stream in (done.text, done.stderr):
            assert all(c.isprintable() or c == "\n" for c in stream), repr(stream)
    assert len(done.json["fused"]) == 1


def test_a_proof_that_fails_keeps_the_nodes_and_ends_with_4(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> Proof:
        return dataclasses.replace(
            prove_site(*arguments, **options), passed=False, reason="9 ulp apart"
        )

    monkeypatch.setattr("rmsnorm_export.proof.prove.prove_site", fail)
    done = run("optimize", three, "-o", "out.onnx", "--prove", "--format", "json")
    done.assert_error(4, "3 proofs failed", "9 ulp apart")
    assert done.json["error"]["exit_code"] == 4
    assert [refusal["reason"] for refusal in done.json["refused"]] == ["proof-failed"] * 3
    assert op_types(three.parent / "out.onnx").count("ReduceMean") == 3
    unmet = run("optimize", three, "-o", "o2.onnx", "--prove", "--require", "1")
    unmet.assert_error(5, "proof-failed")
    assert not (three.parent / "o2.onnx").exists()


def test_a_value_named_like_an_option_is_a_path(run: Run, three: Path, tmp_path: Path) -> None:
    (tmp_path / "--format").write_bytes(three.read_bytes())
    assert run("optimize", "-o", "out.onnx", "--", "--format").code == 0


def test_unknown_types_of_graph_inputs_are_no_obstacle(run: Run, tmp_path: Path) -> None:
    proto = model(2)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    onnx.save(proto, tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "-o", "out.onnx")
    assert done.code == 0, done.stderr


def test_opset_is_raised(run: Run, three: Path) -> None:
    done = run("optimize", three, "-o", "out.onnx", "--opset", "21", "--format", "json")
    assert (done.code, done.json["opset_before"], done.json["opset_after"]) == (0, 18, 21)
    imports = {entry.domain: entry.version for entry in onnx.load("out.onnx").opset_import}
    assert imports[""] == 21
    lower = run("optimize", three, "-o", "low.onnx", "--opset", "17")
    lower.assert_error(2, "opset 18, 17 was asked for")
    assert not Path("low.onnx").exists()
    run("optimize", three, "-o", "low.onnx", "--opset", "0").assert_error(2, "--opset")


def residual_and_gate() -> onnx.ModelProto:
    """``out = RMSNorm(x + r) * silu(z)``."""
    proto = model(1)
    graph = proto.graph
    del graph.node[7:]  # Tanh and Identity
    for node in graph.node:
        node.input[:] = ["h" if name == "x" else name for name in node.input]
    graph.node.insert(0, helper.make_node("Add", ["x", "r"], ["h"], name="/add"))
    graph.node.append(helper.make_node("Sigmoid", ["z"], ["s"], name="/sigmoid"))
    graph.node.append(helper.make_node("Mul", ["z", "s"], ["silu"], name="/silu"))
    graph.node.append(helper.make_node("Mul", ["/layers.0/norm/y", "silu"], ["out"], name="/gate"))
    for name in ("r", "z"):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 40]))
    return proto


@pytest.mark.parametrize(
    ("options", "op"),
    [
        ([], "GatedRMSNorm"),
        (["--no-fold-gate"], "SkipRMSNorm"),
        (["--no-fold-gate", "--no-fold-residual"], "RMSNorm"),
    ],
)
def test_what_is_folded_can_be_chosen(
    run: Run, tmp_path: Path, options: list[str], op: str
) -> None:
    onnx.save(residual_and_gate(), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "-o", "o.onnx", "--prove", "--format", "json", *options)
    assert done.code == 0, done.stderr
    assert [site["op"] for site in done.json["fused"]] == [op]
    assert op in op_types(tmp_path / "o.onnx")


def with_a_look_alike() -> onnx.ModelProto:
    """One RMSNorm, then a division by the 2-norm of the row."""
    proto = model(1)
    last = proto.graph.node.pop()
    proto.graph.node.extend(
        [
            helper.make_node("Mul", [last.input[0]] * 2, ["l2/square"], name="l2/Mul"),
            helper.make_node("ReduceSum", ["l2/square", "axes"], ["l2/sum"], name="l2/Sum"),
            helper.make_node("Add", ["l2/sum", "epsilon"], ["l2/stable"], name="l2/Add"),
            helper.make_node("Sqrt", ["l2/stable"], ["l2/root"], name="l2/Sqrt"),
            helper.make_node("Div", [last.input[0], "l2/root"], ["out"], name="l2/Div"),
        ]
    )
    return proto


def test_a_look_alike_does_not_fail_require_all(run: Run, tmp_path: Path) -> None:
    onnx.save(with_a_look_alike(), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "-o", "o.onnx", "--require", "all")
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("1 of 1 RMSNorm is one node; 1 look-alike left alone\n")
    assert "look-alikes (1): no RMSNorms, left alone\n  1 x  not-the-mean: " in done.text
    assert "nodes  l2/Div\n" in done.text
    as_json = run("optimize", "m.onnx", "-o", "p.onnx", "--format", "json").json
    assert [(r["node"], r["kind"]) for r in as_json["refused"]] == [("l2/Div", "look-alike")]
    alone = run("inspect", "m.onnx", "-q")
    assert alone.text == "1 of 1 RMSNorm can be one node; 1 look-alike left alone\n"
    unmet = run("optimize", "m.onnx", "-o", "q.onnx", "--require", "2")
    unmet.assert_error(5, "1 norm is one node, 0 refused; 1 look-alike,")


def folder_without_permission(folder: Path) -> Path:
    (folder / "locked").mkdir(mode=0o500)
    return folder / "locked" / "out.onnx"


def taken(folder: Path) -> Path:
    (folder / "out.onnx").write_bytes(b"precious")
    return folder / "out.onnx"


@pytest.mark.parametrize(
    ("place", "code", "word"),
    [
        (taken, 2, "--force"),
        (lambda folder: folder / "three.onnx", 2, "is the input file"),
        (lambda folder: folder / "absent" / "out.onnx", 3, "folder of the output does not exist"),
        (lambda folder: folder, 3, "is a folder"),
        (lambda folder: folder / ("x" * 300), 3, "name too long"),
        (folder_without_permission, 3, "no permission"),
    ],
)
def test_a_bad_output_place_is_told_before_the_work(
    run: Run,
    three: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Path], Path],
    code: int,
    word: str,
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work was done first")

    monkeypatch.setattr(rmsnorm_export, "optimize", work)
    # root may write anywhere, so the system is asked in its stead
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in str(path))
    out = place(three.parent)
    before = sorted(three.parent.rglob("*"))
    run("optimize", three, "-o", out, "--prove").assert_error(code, word)
    assert sorted(three.parent.rglob("*")) == before


def test_a_runtime_is_named_and_its_choice_is_said(run: Run, three: Path) -> None:
    done = run("optimize", three, "-o", "for.onnx", "--for", "openvino")
    assert done.code == 0
    assert done.text.startswith("3 of 3 RMSNorms are plain operators")
    assert "for openvino: plain; it fuses the plain operators" in done.text
    assert "run by the tests on 2026.4.1" in done.text
    assert not any("RMSNorm" in kind for kind in op_types(three.parent / "for.onnx"))
    document = run("optimize", three, "-o", "p.onnx", "--format", "json").json
    runs = {entry["runtime"]: entry for entry in document["runs_in"]}
    assert runs["onnxruntime"]["reason"] == ""
    assert "model-local functions" in runs["tvm"]["reason"]
    page = three.parent / "p.html"
    shown = run("optimize", three, "-o", "p.onnx", "--force", "--html", page).text
    assert "\n  runs in onnxruntime 1.15+, " in shown
    assert "\n  not in openvino, opencv, " in shown
    assert "does not run in" in page.read_text(encoding="utf-8").lower()
    unknown = run("optimize", three, "-o", "x.onnx", "--for", "openvin")
    unknown.assert_error(2, "did you mean 'openvino'?")
