"""Folders of graphs, such as exporters of decoders make, in the commands that take a model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graph.folders import snapshot
from onnx import TensorProto

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.bundle import open_folder
from rmsnorm_export.decoder.tokens import Held
from rmsnorm_export.graph.load import serialize
from rmsnorm_export.proof.comparison import Reference
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates
from rmsnorm_export.runtime.sizes import ONE_POINT
from tests.tools.tables import table

N, VOCABULARY = 8, 16  # small tensors, which stay external, too
METADATA = {
    "kwargs": {"input_ids": {"rank": 2}, "past_key_values": {"container": "DynamicCache"}},
    "export_config": {"opset_version": 18},
}


CACHE = "past_key_values.layers.0.keys"
NORM = table(__file__)["norm"]


def graph(table: TensorProto, head: TensorProto, *, decode: bool) -> onnx.ModelProto:
    """Embedding, norm, head; and a cache to which the norm's input is added."""
    words = {"length": "sequence", "inputs": "", "total": "sequence", "store": "Identity(x)"}
    if decode:
        words = {"length": "1", "inputs": f', float[batch, past, 8] "input.{CACHE}"',
                 "total": "total", "store": f'Concat<axis = 1>("input.{CACHE}", x)'}  # fmt: skip
    model = onnx.parser.parse_model(NORM.format(cache=CACHE, **words))
    model.graph.initializer.extend([table, head])
    return model


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Prefill and decode with weights in the data file of the first, as an export writes them."""
    folder = tmp_path / "exported"
    folder.mkdir()
    random = np.random.default_rng(0)
    sizes = {"table": (VOCABULARY, N), "head": (N, VOCABULARY)}
    arrays = {name: random.standard_normal(size, np.float32) for name, size in sizes.items()}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    prefill = graph(*tensors, decode=False)
    how = {"save_as_external_data": True, "location": "prefill.onnx.data", "size_threshold": 64}
    onnx.save(prefill, folder / "prefill.onnx", **how)
    onnx.save(graph(*prefill.graph.initializer[-2:], decode=True), folder / "decode.onnx")
    (folder / "decode.onnx.data").touch()
    (folder / "config.json").write_text("{}")
    names = ("prefill", "decode")
    parts = {name: {"file": f"{name}.onnx", "metadata": METADATA} for name in names}
    manifest = {"schema_version": 1, "export_format": "onnx", "components": parts}
    (folder / "export.json").write_text(json.dumps(manifest))
    return folder


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_optimize_writes_a_folder_with_manifest_config_and_weights_once(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (exported / "additional_chat_templates").mkdir()
    (exported / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    before, out = snapshot(exported), exported.parent / "out"
    arguments = ["optimize", str(exported), "-o", str(out), "--require", "all", "--prove"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("2 of 2 RMSNorms are one node, in 2 graphs\n")
    assert snapshot(exported) == before
    assert set(snapshot(out)) == set(before)
    for name in ("config.json", "prefill.onnx.data"):
        assert snapshot(out)[name] == before[name]
    assert (out / "decode.onnx.data").stat().st_size == 0
    assert rx.verify(exported, out).passed
    arguments = ["optimize", str(out), "-o", str(out.parent / "plain"), "--target", "plain", "-q"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "2 of 2 RMSNorms are plain operators, in 2 graphs\n"
    assert not [entry for entry in exported.parent.iterdir() if entry.name.startswith(".")]


def test_the_manifest_says_the_opset_that_the_graphs_have(exported: Path) -> None:
    made = rx.optimize(exported, target="onnx").save(exported.parent / "out")
    parts = json.loads((made.path / "export.json").read_text())["components"].values()
    versions = [part["metadata"]["export_config"]["opset_version"] for part in parts]
    assert versions == [report.opset_after for report in made.reports.values()] == [23, 23]


@pytest.mark.parametrize("weights", ["auto", "embed"])
def test_a_folder_can_be_optimized_in_its_place(exported: Path, weights: str) -> None:
    (exported / "notes.txt").write_text("mine")
    arguments = ["optimize", str(exported), "-o", str(exported), "--weights", weights]
    before = snapshot(exported)
    assert main(arguments) == 2
    assert snapshot(exported) == before
    assert main([*arguments, "--force"]) == 0
    after = snapshot(exported)
    assert after.keys() == before.keys()
    changed = {name for name in after if after[name] != before[name]}
    data = "prefill.onnx.data"  # empty where all is embedded
    written = {"prefill.onnx", "decode.onnx", "export.json"}
    assert changed == written | ({data} if weights == "embed" else set())
    assert (exported / data).stat().st_nlink == 1
    assert [report.kept for report in rx.inspect(exported).reports.values()].count(()) == 0


@pytest.mark.parametrize("weights", ["auto", "copy", "embed"])
def test_a_result_lasts_when_it_took_the_place_of_its_folder(exported: Path, weights: str) -> None:
    """By a link to it, which stays, and into another layout of the weights."""
    path = exported / "prefill.onnx"
    model = onnx.load(path)
    model.graph.initializer.reverse()  # so a copy has another order
    onnx.save(model, path)
    shutil.copytree(exported, original := exported.parent / "original")
    (link := exported.parent / "link").symlink_to(exported)
    result = rx.optimize(exported)
    result.save(link, weights=weights, force=True)  # type: ignore[arg-type]
    assert link.is_symlink()
    assert (exported / "prefill.onnx.data").stat().st_nlink == 1
    result.save(again := exported.parent / "again")
    for folder in (exported, again):
        assert rx.verify(original, folder).passed
    with pytest.raises(rx.UsageError, match="no such policy"):
        result.save(exported.parent / "new", weights="link")  # type: ignore[arg-type]


def test_a_failure_half_way_leaves_everything_as_it_was(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second graph cannot be written: neither is, and no hidden folder stays."""
    real, done = serialize, []

    def failing(*args: object, **options: object) -> object:
        done.append(args)
        if len(done) == 2:
            raise OSError(28, os.strerror(28), "decode.onnx")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("rmsnorm_export.decoder.bundle.serialize", failing)
    result, before = rx.optimize(exported), snapshot(exported.parent)
    for place, force in ((exported.parent / "out", False), (exported, True)):
        done.clear()
        with pytest.raises(rx.InputError, match="nothing was changed"):
            result.save(place, force=force)
        assert snapshot(exported.parent) == before
    assert [entry.name for entry in exported.parent.iterdir()] == ["exported"]


def test_a_requirement_that_one_graph_misses_writes_nothing(exported: Path) -> None:
    out = exported.parent / "out"
    assert main(["optimize", str(exported), "-o", str(out), "--require", "2"]) == 5
    assert not out.exists()


def test_a_difference_names_the_component(exported: Path) -> None:
    other = exported.parent / "other"
    shutil.copytree(exported, other)
    model = onnx.load(other / "decode.onnx", load_external_data=False)
    (gain,) = (one for one in model.graph.initializer if one.name == "norm.weight")
    gain.raw_data = np.full(N, 2.0, np.float32).tobytes()
    onnx.save(model, other / "decode.onnx")
    outcome = rx.verify(exported, other)
    assert outcome.reason.startswith("decode: ")
    assert [output.name for output in outcome.outputs if not output.passed] == ["decode: logits"]
    assert outcome.first_difference is not None
    assert outcome.first_difference.value == "y"
    (other / "decode.onnx").unlink()
    with pytest.raises(rx.InputError, match="no file"):
        rx.verify(exported, other)


def test_sizes_go_to_the_components_that_have_them(exported: Path) -> None:
    sizes = open_folder(exported).sizes({"input_ids": (3, 1)}, "sequence=5 past=7", ONE_POINT)
    assert sizes["prefill"] == ([{"input_ids": ((3, 1),)}], {"sequence": ((5,),)})
    assert sizes["decode"] == ([{"input_ids": ((3, 1),)}], {"past": ((7,),)})
    outcome = rx.verify(exported, exported, dims="batch=3 past=7 sequence=5")
    assert "decode: input.past_key_values.layers.0.keys float32 [3, 7, 8]" in outcome.inputs
    assert "prefill: input_ids int64 [3, 5]" in outcome.inputs
    with pytest.raises(rx.UsageError, match="No component of the folder has"):
        rx.verify(exported, exported, dims="width=3")


def test_a_package_that_fails_half_way_is_taken_back(exported: Path) -> None:
    """Decode cannot be packaged as asked for: prefill is not left behind."""
    (exported / "prefill.onnx").rename(exported / "model.onnx")  # decode's data has this name
    models = exported.parent / "models"
    files = {"prefill": "model.onnx", "decode": "decode.onnx"}
    parts = {name: {"file": file, "metadata": METADATA} for name, file in files.items()}
    change_manifest(exported, components=parts)
    kept = rx.package_model(exported, models, name="one", kind="cpu", check=False)
    assert [model.name for model in kept.models] == ["one_prefill", "one_decode"]
    before = snapshot(models)
    (models / "two_decode").mkdir()
    (models / "two_decode" / "notes.txt").write_text("mine")
    with pytest.raises(rx.UsageError, match="is taken"):
        rx.package_model(exported, models, kind="cpu", name="two")
    broken = onnx.load(exported / "decode.onnx", load_external_data=False)
    broken.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(broken, exported / "decode.onnx")
    for place in (models, exported.parent / "others"):
        with pytest.raises(rx.Error, match="NoSuchOperator"):
            rx.package_model(exported, place, kind="cpu", name="three")
    assert not (exported.parent / "others").exists()
    assert before.items() <= snapshot(models).items()
    assert snapshot(models).keys() - before.keys() == {"two_decode", "two_decode/notes.txt"}


def test_a_package_of_two_graphs_is_told_in_fifteen_lines(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = exported.parent / "models"
    assert main(["package", str(exported), "-o", str(place), "--name", "one", "--kind=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == [
        "packaged one_prefill", "packaged one_decode",
    ]  # fmt: skip
    assert len(lines) <= 15


def test_graphs_without_a_config_are_told_so(exported: Path) -> None:
    for name in ("config.json", "export.json"):
        (exported / name).unlink()
    for command in (rx.inspect, lambda place: rx.package_model(place, exported.parent / "models")):
        with pytest.raises(rx.InputError, match=r"decode.onnx, and no config.json") as caught:
            command(exported)
        assert "give the .onnx file itself" in str(caught.value)


def test_a_cache_of_an_encoder_that_a_graph_does_not_change_is_held() -> None:
    """optimum's merged decoder gives an empty one."""
    held, name = Held(), "present.0.encoder.key"
    for rows in (2, 0):
        held.keep(Reference(outputs={name: np.zeros((rows, 4, 1, 8))}))
    assert held.leaves["past_key_values.0.encoder.key"].shape[0] == 2


def test_graphs_without_a_manifest_are_a_folder_too(exported: Path) -> None:
    (exported / "export.json").unlink()
    made = rx.optimize(exported, target="ort").save(exported.parent / "out")
    assert list(made.reports) == ["decode", "prefill"]
    assert sorted(path.name for path in made.files) == [
        "config.json", "decode.onnx", "decode.onnx.data", "prefill.onnx",
    ]  # fmt: skip
    assert (
        made.path.joinpath("decode.onnx.data").stat().st_size > 0
    )  # transformers alone wants both
    assert rx.verify(exported, made.path).passed
    (exported / "model.safetensors").write_bytes(b"")  # of a PyTorch model, which verify loads
    with pytest.raises(rx.InputError, match=r"decode.onnx beside model.safetensors"):
        rx.optimize(exported)
    (exported / "model.safetensors").rename(exported / "weights.bin")  # as of ONNX, too
    assert rx.verify(exported, made.path).passed


def of(**changes: object) -> dict[str, object]:
    """A manifest of decode alone, with other metadata or another file."""
    file = changes.pop("file", "decode.onnx")
    return {"components": {"decode": {"file": file, "metadata": METADATA | changes}}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"export_format": "openvino"}, "export_format"),
        *(({"components": parts}, "components") for parts in ({}, 3, {"decode": 3})),
        *((of(export_config=config), "export_config") for config in ("text", "", [["a", 8]], 3)),
        *(
            (of(export_config={"static_cache": size}), "static_cache")
            for size in ("8", [8], {"size": 8}, 8.5, True, 0, -1, 1 << 40)
        ),
        *((of(file=file), "file") for file in ("../decode.onnx", "/etc/passwd", "a.txt", 3)),
        (of(file="none.onnx"), "no file"),
        ({"components": {k: {"file": "decode.onnx", "metadata": {}} for k in "ab"}}, "no file"),
    ],
)
def test_a_manifest_that_its_files_contradict_is_refused(
    exported: Path, changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change_manifest(exported, **changes)
    out = exported.parent / "out"
    for arguments in (["optimize", exported, "-o", out], ["inspect", exported]):
        assert main([str(argument) for argument in arguments]) == 3
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 3
    assert not out.exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "notes.txt"])
def test_a_link_takes_no_file_of_the_user_along(
    exported: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, out = exported.parent / "secret", exported.parent / "out"
    secret.write_text("of the user")
    (exported / name).symlink_to(secret)
    assert main(["optimize", str(exported), "-o", str(out)]) == 3
    assert "outside of it" in capsys.readouterr().err
    assert not out.exists()
    (exported / name).unlink()
    (exported / "within.md").write_text("of the folder")
    (exported / name).symlink_to("within.md")
    assert main(["optimize", str(exported), "-o", str(out)]) == 0
    assert (out / name).read_text() == "of the folder"


GENAI = {
    "model": {
        "decoder": {
            "filename": "decode.onnx",
            "inputs": {"past_key_names": "input.past_key_values.layers.%d.keys"},
            "outputs": {"present_key_names": "output.past_key_values.layers.%d.keys"},
        }
    },
    "search": {"past_present_share_buffer": False},
}
KINDS = {"str": "x", "array": [1], "object": {"a": {}}, "int": 3, "null": None}


MANIFEST = {
    "export_format": "onnx",
    "components": {"one": {"file": "decode.onnx", "metadata": {}}},
}


def with_others(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the content with a value of another kind in the place of each, and its kind."""
    yield from ((kind, one) for kind, one in KINDS.items() if type(one) is not type(content))
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from ((kind, content | {key: one}) for kind, one in with_others(value))


@pytest.mark.parametrize(("file", "content"), [("genai_config", GENAI), ("export", MANIFEST)])
def test_a_value_of_another_kind_is_named_wherever_it_stands(
    file: str, content: dict[str, Any], exported: Path
) -> None:
    (exported / "export.json").unlink()
    (place := exported / f"{file}.json").write_text(json.dumps(content))
    assert open_folder(exported).files
    for kind, changed in with_others(content):
        place.write_text(json.dumps(changed))
        with pytest.raises(rx.InputError, match=rf": Expected .*, got {kind}\n"):
            open_folder(exported)


# ``optimize --dtype`` of a decoder's folder.


def test_graphs_of_a_folder_are_converted_alike_and_share_weights(
    decoder: Path, tmp_path: Path
) -> None:
    result = rx.optimize(decoder, dtype="f16", half_io=True, target="ort")
    saved = result.save(tmp_path / "half")
    for name, report in result.reports.items():
        assert report.precision.problem == ""
        assert "keep their largest element" in report.precision.compared
        graph = ir.load(saved.path / f"{name}.onnx").graph
        types = {value.dtype for value in (*graph.inputs, *graph.outputs)}
        assert {one for one in types if one.is_floating_point()} == {ir.DataType.FLOAT16}
    sizes = [sum(file.stat().st_size for file in at.glob("*.data")) for at in (decoder, saved.path)]
    assert sizes[1] < 0.6 * sizes[0]
    assert rx.verify(decoder, saved.path, rtol=2e-2).passed


def test_inputs_and_sizes_are_for_the_graph_that_has_them(decoder: Path) -> None:
    """As of an image encoder, which runs on no random ones."""
    models = {name: ir.load(decoder / f"{name}.onnx") for name in ("prefill", "decode")}
    candidates, _ = input_candidates(
        graph_inputs(models["prefill"]), index_limits(models["prefill"]), None
    )
    result = rx.optimize(decoder, dtype="f16", inputs=[next(iter(candidates()))])
    origins = {name: report.precision.inputs for name, report in result.reports.items()}
    assert origins == {"prefill": "given arrays", "decode": "random, seeds from 0"}
    (past,) = {
        size.value
        for value in models["decode"].graph.inputs
        if len(value.shape) == 4 and isinstance(size := value.shape[2], ir.SymbolicDim)
    }
    sized = rx.optimize(decoder, dtype="f16", dims=f"{past}=4").reports
    assert not any(report.precision.problem for report in sized.values())
    with pytest.raises(rx.UsageError, match="No component of the folder has inputs"):
        rx.optimize(decoder, dtype="f16", inputs=[{"z": np.zeros(3, np.float32)}])
