"""The manifest for KServe, and a schema that refuses what is not one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.serving.kserve import KServe, manifest
from rmsnorm_export.serving.package import package_model
from tests.serving.kserve_schema import SCHEMA
from tests.serving.models import needs_kserve, needs_triton, norm_model

pytestmark = [needs_triton, needs_kserve]

URI = "pvc://claim/models"


def _parsed(text: str) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(text)  # type: ignore[no-any-return]


def _problem(document: object) -> str:
    """What the schema has against a document, "" for nothing."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(SCHEMA)
    problem = jsonschema.exceptions.best_match(validator.iter_errors(document))
    return "" if problem is None else str(problem.message)


def test_the_manifest_of_a_package(tmp_path: Path) -> None:
    options = KServe(URI, namespace="ml", cpu="500m", min_replicas=0, max_replicas=3)
    packaged = package_model(norm_model(), tmp_path, name="My_Net", kserve=options)
    document = _parsed((packaged.path / "inferenceservice.yaml").read_text())
    assert _problem(document) == ""
    assert document["metadata"] == {"name": "my-net", "namespace": "ml"}
    predictor = document["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (0, 3)
    assert predictor["model"]["storageUri"] == URI
    amounts = {"cpu": "500m", "memory": "16Gi", "nvidia.com/gpu": "1"}
    assert predictor["model"]["resources"] == {"requests": amounts, "limits": amounts}
    assert "args" not in predictor["model"]
    assert "inferenceservice.yaml" in {file.path for file in packaged.record.files}
    second = package_model(norm_model(scale=2.0), tmp_path, name="My_Net", version=2)
    assert "inferenceservice.yaml" in {file.path for file in second.record.files}, "it is kept"


def test_the_cpu_needs_no_gpu_and_the_plugin_an_argument() -> None:
    text = manifest(KServe(URI), "net", "cpu", "net/1/plugin.so")
    assert _problem(_parsed(text)) == ""
    model = _parsed(text)["spec"]["predictor"]["model"]
    assert "nvidia.com/gpu" not in model["resources"]["limits"]
    assert model["args"] == ["--backend-config=tensorrt,plugins=/mnt/models/net/1/plugin.so"]


@pytest.mark.parametrize(
    "options",
    [
        KServe(""),
        KServe("models"),
        KServe("pvc://claim/mo dels"),
        KServe("ftp://host/models"),
        KServe(URI, name="Net"),
        KServe(URI, name="n" * 64),
        KServe(URI, namespace="a.b"),
        KServe(URI, cpu="many"),
        KServe(URI, memory="16GB"),
        KServe(URI, runtime=""),
        KServe(URI, runtime="kserve tritonserver"),
        KServe(URI, gpus=-1),
        KServe(URI, min_replicas=2, max_replicas=1),
        KServe(URI, min_replicas=0, max_replicas=0),
        KServe(f"{URI}\nkind: Secret"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: KServe) -> None:
    with pytest.raises(UsageError):
        package_model(norm_model(), tmp_path / "models", name="net", kserve=options)
    assert not (tmp_path / "models").exists()


def test_names_become_those_of_services() -> None:
    for name, expected in (("9-b", "model-9-b"), ("a_", "a"), ("A_b", "a-b")):
        document = _parsed(manifest(KServe(URI), name, "gpu", ""))
        assert document["metadata"]["name"] == expected
        assert _problem(document) == ""


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("apiVersion",), "serving.kserve.io/v1alpha1"),
        (("kind",), "ServingRuntime"),
        (("metadata", "name"), "Net"),
        (("metadata", "nmae"), "net"),
        (("spec", "predictor", "minReplicas"), -1),
        (("spec", "predictor", "model", "storageUri"), None),
        (("spec", "predictor", "model", "storageuri"), URI),
        (("spec", "predictor", "model", "protocolVersion"), "v1"),
        (("spec", "predictor", "model", "modelFormat"), {}),
        (("spec", "predictor", "model", "resources", "limits", "memory"), 16),
    ],
)
def test_the_schema_can_refuse(place: tuple[str, ...], value: object) -> None:
    document = _parsed(manifest(KServe(URI), "net", "gpu", ""))
    assert _problem(document) == ""
    wrong = copy.deepcopy(document)
    target = wrong
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    assert _problem(wrong)
