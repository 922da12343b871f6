"""ONNX models become entries of a repository; Triton's definitions and ONNX Runtime judge them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rmsnorm_export.errors import InputError, NotRunError, UsageError, VerificationError
from rmsnorm_export.runtime.session import NoKernelError
from rmsnorm_export.serving import trial
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.serving.protos import data_type_name, definitions, parse_config
from tests.serving.models import (
    N,
    batch_mean_model,
    decoder_model,
    graph_model,
    identity_model,
    needs_triton,
    norm_model,
    save_external,
    tree,
    value,
)

pytestmark = needs_triton


def _config(folder: Path):  # type: ignore[no-untyped-def]
    return parse_config((folder / "config.pbtxt").read_text(), "config.pbtxt")


def _answer(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)  # type: ignore[no-any-return]


def test_a_model_with_a_batch(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(norm_model(), source)
    packaged = package_model(source, tmp_path / "models")
    assert packaged.path == tmp_path / "models" / "net"
    names = {"config.pbtxt", "README.md", "rmsnorm_export.json", "1", "1/model.onnx"}
    assert set(tree(packaged.path)) == names
    assert (packaged.path / "1/model.onnx").read_bytes() == source.read_bytes()
    config = _config(packaged.path)
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 8)
    assert [list(item.dims) for item in (*config.input, *config.output)] == [[N], [N]]
    assert config.version_policy.WhichOneof("policy_choice") == "all"
    assert config.HasField("dynamic_batching")
    assert [warm.batch_size for warm in config.model_warmup] == [1, 8]
    assert config.model_warmup[0].inputs["x"].random_data
    kinds = definitions().ModelInstanceGroup.Kind
    assert config.instance_group[0].kind == kinds.Value("KIND_GPU")
    x = np.random.default_rng(1).standard_normal((8, N)).astype(np.float32)
    (got,) = _answer(packaged.path / "1/model.onnx", x=x)
    np.testing.assert_array_equal(got, _answer(source, x=x)[0])
    outcomes = {check.name: check.outcome for check in packaged.checks}
    assert set(outcomes.values()) == {"passed"}
    assert {"joined requests", "answers from its final place", "config.pbtxt"} <= set(outcomes)


def test_options_of_the_configuration(tmp_path: Path) -> None:
    packaged = package_model(
        decoder_model(),
        tmp_path / "m",
        name="d",
        max_batch=16,
        preferred_batch_sizes=[4, 16],
        queue_delay_us=7,
        instances=3,
        kind="cpu",
        shapes="ids=1x1,4x12,16x20",
    )
    config = _config(packaged.path)
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 16]
    assert config.dynamic_batching.max_queue_delay_microseconds == 7
    kinds = definitions().ModelInstanceGroup.Kind
    assert config.instance_group[0].count == 3
    assert config.instance_group[0].kind == kinds.Value("KIND_CPU")
    warm = [(w.batch_size, list(w.inputs["ids"].dims)) for w in config.model_warmup]
    assert warm == [(4, [12]), (16, [20])]
    assert all(w.inputs["ids"].zero_data for w in config.model_warmup), "zeros are valid indices"
    assert [list(i.dims) for i in config.input] == [[-1]]
    assert [list(o.dims) for o in config.output] == [[-1, N]]


def test_the_largest_batch_is_that_of_the_shapes(tmp_path: Path) -> None:
    packaged = package_model(decoder_model(), tmp_path, name="d", shapes="ids=1x1,2x3,5x7")
    assert packaged.record.max_batch == 5
    with pytest.raises(UsageError, match="more than the shapes allow"):
        package_model(decoder_model(), tmp_path, name="e", shapes="ids=1x1,2x3,5x7", max_batch=6)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (TensorProto.FLOAT16, "TYPE_FP16"),
        (TensorProto.FLOAT, "TYPE_FP32"),
        (TensorProto.DOUBLE, "TYPE_FP64"),
        (TensorProto.INT64, "TYPE_INT64"),
        (TensorProto.UINT16, "TYPE_UINT16"),
        (TensorProto.INT8, "TYPE_INT8"),
        (TensorProto.BOOL, "TYPE_BOOL"),
        (TensorProto.STRING, "TYPE_STRING"),
    ],
)
def test_element_types(tmp_path: Path, dtype: int, name: str) -> None:
    config = _config(package_model(identity_model(dtype), tmp_path, name="t").path)
    assert [data_type_name(i.data_type) for i in (*config.input, *config.output)] == [name] * 2
    assert len(config.model_warmup) == 2


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_a_type_that_the_server_does_not_know(tmp_path: Path, dtype: int) -> None:
    with pytest.raises(InputError, match="no such element type"):
        package_model(identity_model(dtype), tmp_path, name="t")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((2, 3), [2, 3]),
        ((None, 3), [-1, 3]),
        ((3, "batch"), [3, -1]),
        ((), [1]),
    ],
)
def test_no_batch(tmp_path: Path, dims: tuple[int | str | None, ...], expected: list[int]) -> None:
    packaged = package_model(identity_model(TensorProto.FLOAT, dims), tmp_path, name="t")
    config = _config(packaged.path)
    assert config.max_batch_size == 0
    assert [list(i.dims) for i in (*config.input, *config.output)] == [expected] * 2
    assert config.input[0].HasField("reshape") == (dims == ())
    assert not config.HasField("dynamic_batching")
    assert [w.batch_size for w in config.model_warmup] == [1]
    assert any("not batched" in note for note in packaged.current.notes)


def test_a_batch_that_is_asked_for_needs_an_axis(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot join requests"):
        package_model(norm_model((4,)), tmp_path, name="t", max_batch=4)
    with pytest.raises(UsageError, match="cannot be joined"):
        package_model(norm_model((4,)), tmp_path, name="t", preferred_batch_sizes=[2])
    unnamed = package_model(norm_model((None,)), tmp_path, name="t", max_batch=4)
    assert unnamed.record.max_batch == 4, "who asks for a batch says what the axis is"


def test_leading_axes_of_two_names_are_no_batch(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    model = graph_model(
        [node],
        [value("a", 1, ["rows", 4]), value("b", 1, ["inner", 3])],
        [value("y", 1, ["rows", 3])],
    )
    packaged = package_model(model, tmp_path, name="t", shapes="a=4x4;b=4x3")
    assert packaged.record.max_batch == 0
    assert any("leading axes differ" in note for note in packaged.current.notes)


def test_requests_that_change_each_other_are_not_joined(tmp_path: Path) -> None:
    packaged = package_model(batch_mean_model(), tmp_path / "m", name="mean")
    assert packaged.record.max_batch == 0
    assert any("changes when another is joined" in note for note in packaged.current.notes)
    with pytest.raises(VerificationError, match="change each other"):
        package_model(batch_mean_model(), tmp_path / "n", name="mean", max_batch=4)
    assert not (tmp_path / "n").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_no_warm_up_for_a_model_that_fails_on_zeros(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "to"], ["y"], allowzero=1)
    model = graph_model(
        [node], [value("x", 1, [1, 1]), value("to", 7, [2])], [value("y", 1, [1, 1])]
    )
    packaged = package_model(model, tmp_path, name="t")
    assert not _config(packaged.path).model_warmup
    assert any("no warm-up" in note for note in packaged.current.notes)
    with pytest.raises(VerificationError, match="cannot warm"):
        package_model(model, tmp_path, name="u", warmup=True)


def test_a_model_that_answers_nothing(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    model = graph_model(
        [node], [value("a", 1, [3, 4]), value("b", 1, [5, "k"])], [value("y", 1, [3, "k"])]
    )
    with pytest.raises(VerificationError):
        package_model(model, tmp_path, name="t")
    assert tree(tmp_path) == {}
    unchecked = package_model(model, tmp_path, name="t", check=False)
    assert "skipped" in {check.outcome for check in unchecked.checks}


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_an_answer_without_a_number_is_no_pass(tmp_path: Path, factor: float) -> None:
    """Of two outputs one is enough: the other does not speak for it."""
    nodes = [helper.make_node("Neg", ["x"], ["good"]), helper.make_node("Mul", ["x", "w"], ["bad"])]
    outputs = [value(name, 1, ["batch", 4]) for name in ("good", "bad")]
    weight = {"w": np.full(4, factor, np.float32)}
    model = graph_model(nodes, [value("x", 1, ["batch", 4])], outputs, weight)
    with pytest.raises(VerificationError, match="nothing that could be compared") as caught:
        package_model(model, tmp_path, name="t")
    for word in ("output 'bad' has no finite number", "x 1x4", "onnxruntime"):
        assert word in caught.value.found
    assert tree(tmp_path) == {}
    unchecked = package_model(model, tmp_path, name="t", check=False)
    outcomes = {check.name: check.outcome for check in unchecked.checks}
    assert outcomes["answers in ONNX Runtime"] == "skipped"


def test_answers_without_an_element_are_no_pass(tmp_path: Path) -> None:
    """Every output is empty for every request."""
    node = helper.make_node("Slice", ["x", "none", "none", "axis"], ["y"])
    model = graph_model(
        [node],
        [value("x", 1, ["batch", 4])],
        [value("y", 1, ["batch", "left"])],
        {"none": np.array([0]), "axis": np.array([1])},
    )
    with pytest.raises(VerificationError, match="nothing that could be compared") as caught:
        package_model(model, tmp_path, name="t")
    assert "output 'y' has no element" in caught.value.found


def test_a_model_that_cannot_be_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pass nor skipped: it has a word of its own."""

    def no_kernel(*_: object, **__: object) -> None:
        raise NoKernelError("ONNX Runtime cannot run it.", found="bfloat16 Mul", fix="a GPU")

    monkeypatch.setattr(trial, "open_session", no_kernel)
    packaged = package_model(norm_model(), tmp_path, name="t")
    (check,) = [check for check in packaged.checks if check.name == "answers in ONNX Runtime"]
    assert (check.outcome, check.detail) == ("not run", "not on the CPU: bfloat16 Mul")
    assert "| not run |" in (packaged.path / "README.md").read_text()


@pytest.mark.parametrize("location", ["w.bin", "deep/w.bin"])
def test_external_data_comes_along(tmp_path: Path, location: str) -> None:
    source = save_external(norm_model(), tmp_path / "src" / "net.onnx", location)
    x = np.ones((2, N), np.float32)
    (before,) = _answer(source, x=x)
    packaged = package_model(source, tmp_path / "models")
    shutil.rmtree(tmp_path / "src")
    (after,) = _answer(packaged.path / "1" / "model.onnx", x=x)
    np.testing.assert_array_equal(after, before)
    listed = {file.path: file.sha256 for file in packaged.current.files}
    assert set(listed) == {"1/model.onnx", f"1/{location}"}
    for path, digest in listed.items():
        assert hashlib.sha256((packaged.path / path).read_bytes()).hexdigest() == digest


def test_external_data_that_is_missing_or_in_the_way(tmp_path: Path) -> None:
    source = save_external(norm_model(), tmp_path / "src" / "net.onnx", "w.bin")
    (source.parent / "w.bin").unlink()
    with pytest.raises(InputError, match="external data"):
        package_model(source, tmp_path / "models")
    clash = save_external(norm_model(), tmp_path / "clash" / "net.onnx", "model.onnx")
    with pytest.raises(UsageError, match="needs for another file"):
        package_model(clash, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_external_data_behind_a_link_is_copied(tmp_path: Path) -> None:
    source = save_external(norm_model(), tmp_path / "src" / "net.onnx", "real.bin")
    moved = source.with_name("w.bin")
    (source.parent / "real.bin").rename(moved)
    (source.parent / "real.bin").symlink_to("w.bin")
    packaged = package_model(source, tmp_path / "models")
    assert not any(path.is_symlink() for path in packaged.path.rglob("*"))


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a.b", "", "-x", "a b", "x" * 200, "ü", "a\n"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name of the model"):
        package_model(norm_model(), tmp_path, name=name)
    assert tree(tmp_path) == {}


def test_a_file_name_that_is_no_model_name(tmp_path: Path) -> None:
    source = tmp_path / "net.v2.onnx"
    onnx.save(norm_model(), source)
    with pytest.raises(UsageError, match="--name"):
        package_model(source, tmp_path / "models")


def test_a_dynamic_rank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dynamic rank"):
        package_model(identity_model(TensorProto.FLOAT, None), tmp_path, name="t")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for repository in (tmp_path / "no" / "such", tmp_path / "file"):
        with pytest.raises(InputError, match="repository cannot be"):
            package_model(norm_model(), repository, name="t")
    assert set(tree(tmp_path)) == {"file"}


def test_what_could_not_be_run_here_is_packaged_unless_it_must_be_verified(tmp_path: Path) -> None:
    model = graph_model(
        [helper.make_node("Det", ["x"], ["y"])],  # in float64 ONNX Runtime has no kernel for it
        [value("x", TensorProto.DOUBLE, ["batch", 2, 2])],
        [value("y", TensorProto.DOUBLE, ["batch"])],
    )
    with pytest.raises(NotRunError, match="could not be run here") as caught:
        package_model(model, tmp_path / "models", name="t", require_verified=True)
    assert "Det" in caught.value.found
    assert not (tmp_path / "models" / "t").exists()
    packaged = package_model(model, tmp_path / "models", name="t")
    assert [check.outcome for check in packaged.checks].count("not run") == 1
