"""ONNX models become entries of a repository; Triton's definitions and ONNX Runtime judge them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import rmsnorm_export as rx
from rmsnorm_export.deploy import package
from rmsnorm_export.deploy.package import package_model
from rmsnorm_export.errors import InputError, UsageError, VerificationError
from rmsnorm_export.runtime.session import NoKernelError
from tests.deploy import models
from tests.deploy.models import N, needs_triton, tree

pytestmark = needs_triton


def config_of(packaged: rx.Packaged) -> Any:
    return models.read_config(packaged.path / packaged.models[0].name)


def dims_of(config: Any) -> list[list[int]]:
    return [list(item.dims) for item in (*config.input, *config.output)]


def test_a_model_with_a_batch(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(models.norm(), source)
    packaged = package_model(source, tmp_path / "models")
    home, (model,) = tmp_path / "models/net", packaged.models
    assert set(tree(home)) == {"config.pbtxt", "1", "1/model.onnx", "1/package.json"}
    assert (home / "1/model.onnx").read_bytes() == source.read_bytes()
    config = config_of(packaged)
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 8)
    assert dims_of(config) == [[N], [N]]
    assert config.version_policy.WhichOneof("policy_choice") == "all"
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert "two in one batch got the answers" in model.answers
    for path, sha256 in model.files.items():
        assert hashlib.sha256((home / path).read_bytes()).hexdigest() == sha256


@pytest.mark.parametrize(("found", "kind"), [((), "KIND_CPU"), (("a GPU",), "KIND_AUTO")])
def test_a_server_is_told_of_a_gpu_where_one_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...], kind: str
) -> None:
    monkeypatch.setattr("rmsnorm_export.deploy.package.gpus", lambda: found)
    package_model(models.decoder(), tmp_path / "m", name="d", check=False)
    assert f"kind: {kind} " in (tmp_path / "m/d/config.pbtxt").read_text()


def test_options_of_the_configuration(tmp_path: Path) -> None:
    options = {"max_batch": 16, "kind": "cpu", "shapes": "ids=1x1,4x12,16x20"}
    config = config_of(package_model(models.decoder(), tmp_path / "m", name="d", **options))
    assert config.instance_group[0].kind == 2  # KIND_CPU
    assert dims_of(config) == [[-1], [-1, N]]
    with pytest.raises(UsageError):
        package_model(models.decoder(), tmp_path / "m", name="e", **options | {"max_batch": 17})


SERVED = {"FLOAT16": 10, "DOUBLE": 12, "INT64": 9, "BOOL": 1}
"""``DataType`` of model_config.proto: TYPE_FP16, TYPE_FP64, TYPE_INT64, TYPE_BOOL."""


@pytest.mark.parametrize("name", SERVED)
def test_element_types(tmp_path: Path, name: str) -> None:
    model = models.identity(getattr(TensorProto, name))
    config = config_of(package_model(model, tmp_path, name="t"))
    assert {one.data_type for one in (*config.input, *config.output)} == {SERVED[name]}


@pytest.mark.parametrize("name", ["STRING", "BFLOAT16", "FLOAT8E4M3FN"])
def test_element_types_that_it_has_not(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot serve"):
        package_model(models.identity(getattr(TensorProto, name)), tmp_path, name="t")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("dims", "expected"),
    [((2, 3), [2, 3]), ((None, 3), [-1, 3]), ((3, "batch"), [3, -1]), ((), [1])],
)
def test_no_batch(tmp_path: Path, dims: tuple[int | str | None, ...], expected: list[int]) -> None:
    packaged = package_model(models.identity(TensorProto.FLOAT, dims), tmp_path, name="t")
    config = config_of(packaged)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert dims_of(config) == [expected] * 2
    assert config.input[0].HasField("reshape") == (dims == ())
    assert any("not batched" in note for note in packaged.models[0].notes)
    asked = {"name": "u", "max_batch": 4}
    if dims[:1] == (None,):  # who asks for a batch says what the axis is
        assert package_model(models.identity(1, dims), tmp_path, **asked).models[0].max_batch == 4
        return
    with pytest.raises(UsageError, match="cannot join requests"):
        package_model(models.identity(1, dims), tmp_path, **asked)


def test_requests_that_change_each_other_are_not_joined(tmp_path: Path) -> None:
    (model,) = package_model(models.batch_mean(), tmp_path / "m", name="mean").models
    assert model.max_batch == 0
    assert any("changes when another is joined" in note for note in model.notes)
    with pytest.raises(VerificationError, match="change each other"):
        package_model(models.batch_mean(), tmp_path / "n", name="mean", max_batch=4)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_an_answer_without_a_number_is_no_pass(tmp_path: Path, factor: float) -> None:
    """Of two outputs one is enough: the other does not speak for it."""
    model = models.parsed(
        "(float[batch,4] x) => (float[batch,4] good, float[batch,4] bad)"
        "{ good = Neg(x) bad = Mul(x, w) }",
        w=np.full(4, factor, np.float32),
    )
    with pytest.raises(VerificationError, match="does not answer") as caught:
        package_model(model, tmp_path, name="t")
    assert "output 'bad' has no finite number" in caught.value.found
    assert tree(tmp_path) == {}
    assert package_model(model, tmp_path, name="t", check=False).models[0].answers[:2] == "no"


def test_a_model_that_cannot_be_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pass nor skipped: it has a word of its own."""

    def no_kernel(*_: object) -> None:
        raise NoKernelError("ONNX Runtime cannot run it.", found="bfloat16 Mul", fix="a GPU")

    monkeypatch.setattr(package, "try_model", no_kernel)
    packaged = package_model(models.norm(), tmp_path, name="t")
    assert packaged.models[0].answers == "not run: bfloat16 Mul"


@pytest.mark.parametrize("location", ["w.bin", "deep/w.bin"])
def test_external_data_comes_along(tmp_path: Path, location: str) -> None:
    def answer(path: Path) -> np.ndarray:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.ones((2, N), np.float32)})[0]  # type: ignore[no-any-return]

    source = models.save_external(models.norm(), tmp_path / "src" / "net.onnx", location)
    before, moved = answer(source), source.with_name("real.bin")
    (source.parent / location).rename(moved)
    (source.parent / location).symlink_to(moved)
    packaged = package_model(source, tmp_path / "models")
    shutil.rmtree(tmp_path / "src")
    assert not any(path.is_symlink() for path in packaged.path.rglob("*"))
    np.testing.assert_array_equal(answer(tmp_path / "models/net/1/model.onnx"), before)
    assert f"1/{location}" in packaged.models[0].files


def test_external_data_that_is_missing_or_in_the_way(tmp_path: Path) -> None:
    source = models.save_external(models.norm(), tmp_path / "src" / "net.onnx", "w.bin")
    (source.parent / "w.bin").unlink()
    clash = models.save_external(models.norm(), tmp_path / "clash" / "net.onnx", "model.onnx")
    for path, words in ((source, "external data"), (clash, "needs for another file")):
        with pytest.raises(rx.Error, match=words):
            package_model(path, tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", "", "-x", "a b", "x" * 200, "ü", "a\n"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name of the model"):
        package_model(models.norm(), tmp_path, name=name)
    assert tree(tmp_path) == {}


def test_a_name_that_would_break_the_configuration(tmp_path: Path) -> None:
    model = models.norm()
    evil = 'x`|\n# Heading <script>"\\ü'
    model.graph.input[0].name = model.graph.node[0].input[0] = evil
    packaged = package_model(model, tmp_path, name="net")
    assert config_of(packaged).input[0].name == evil
