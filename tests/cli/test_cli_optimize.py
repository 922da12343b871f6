"""``optimize`` as a program: output, reports, exit codes; nothing else is touched."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import external_data_helper

from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.result import Proof

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
        (lambda folder: folder / "absent" / "out.onnx", 3, "folder does not exist"),
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

    monkeypatch.setattr("rmsnorm_export.rewrite.optimize.optimize", work)
    # root may write anywhere, so the system is asked in its stead
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in str(path))
    out = place(three.parent)
    before = sorted(three.parent.rglob("*"))
    run("optimize", three, "-o", out, "--prove").assert_error(code, word)
    assert sorted(three.parent.rglob("*")) == before
