"""The KServe InferenceService that runs a repository on a cluster."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

from rmsnorm_export.errors import BackendMissingError, Error, UsageError
from rmsnorm_export.printable import quoted
from rmsnorm_export.serving.result import InstanceKind
from rmsnorm_export.system.packages import pip_install

MOUNT = "/mnt/models"
"""Where KServe puts what ``storageUri`` names."""

RUNTIME = "kserve-tritonserver"
"""The ClusterServingRuntime that KServe installs; its Triton reads the repository at ``MOUNT``."""

# From KServe's validation in pkg/apis/serving/v1beta1 (component.go,
# inference_service_validation.go); the quantities are those of Kubernetes' apimachinery.
QUANTITY = r"^([0-9]+(\.[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

SERVICE_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Of an InferenceService: it becomes part of host names."""

STORAGE_URI = r"^(gs|s3|hdfs|webhdfs|pvc|file|https?|oci|hf)://[^\s]+$"


@dataclasses.dataclass(frozen=True, slots=True)
class KServe:
    """What the manifest needs beyond the package.

    Attributes:
        storage_uri: where the cluster finds the repository (the folder above the model's), e.g.
            ``s3://bucket/models`` or ``pvc://claim/models``.
        name: of the service; None: the model's, in lower case.
        namespace: None: that of the client.
        cpu, memory: cores and bytes, as Kubernetes quantities.
        gpus: of every replica; None: 1 where instances run on the GPU, else 0.
        min_replicas: 0: scale to zero.
        runtime: serving runtime of the cluster.
    """

    storage_uri: str
    name: str | None = None
    namespace: str | None = None
    cpu: str = "4"
    memory: str = "16Gi"
    gpus: int | None = None
    min_replicas: int = 1
    max_replicas: int = 1
    runtime: str = RUNTIME


def check_kserve(options: KServe, model: str) -> None:
    """Before work is done: the options can be written.

    Raises:
        UsageError: naming the option.
        BackendMissingError: PyYAML is not installed.
    """
    for what, value, pattern, example in (
        ("storage URI", options.storage_uri, STORAGE_URI, "s3://bucket/models, pvc://claim/models"),
        ("service name", service_name(options, model), SERVICE_NAME, "my-model"),
        ("namespace", options.namespace or "default", SERVICE_NAME, "default"),
        ("serving runtime", options.runtime, r"^\S+$", RUNTIME),
        ("amount of CPU", options.cpu, QUANTITY, "4 or 500m"),
        ("amount of memory", options.memory, QUANTITY, "16Gi"),
    ):
        if not re.match(pattern, value) or len(value) > (63 if pattern == SERVICE_NAME else 2000):
            raise UsageError(
                f"The {what} cannot be used.", found=quoted(value), fix=f"give e.g. {example}"
            )
    if not 0 <= options.min_replicas <= options.max_replicas or options.max_replicas < 1:
        raise UsageError(
            "The numbers of replicas do not fit.",
            found=f"from {options.min_replicas} to {options.max_replicas}",
            fix="give 0 <= least <= most, and 1 or more as the most",
        )
    if options.gpus is not None and options.gpus < 0:
        raise UsageError("The number of GPUs is negative.", found=str(options.gpus), fix="give 0")
    _yaml()


def service_name(options: KServe, model: str) -> str:
    """As given, or the model's name as Kubernetes writes names."""
    if options.name is not None:
        return options.name
    name = model.lower().replace("_", "-").strip("-")
    return name if name[:1].isalpha() else f"model-{name}"


def manifest(options: KServe, model: str, kind: InstanceKind, plugin: str) -> str:
    """The manifest as YAML, read back and compared.

    ``plugin`` is the path of the plugin library in the repository, "" without one.

    Raises:
        Error: it changed when it was read back; that would be an error of this program.
    """
    gpus = options.gpus if options.gpus is not None else int(kind == "gpu")
    amounts = {"cpu": options.cpu, "memory": options.memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    served: dict[str, Any] = {
        "modelFormat": {"name": "triton", "version": "2"},
        "protocolVersion": "v2",
        "runtime": options.runtime,
        "storageUri": options.storage_uri,
    }
    if plugin:
        # KServe puts these behind the arguments of the runtime.
        served["args"] = [f"--backend-config=tensorrt,plugins={MOUNT}/{plugin}"]
    served["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    metadata = {"name": service_name(options, model)}
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    document = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {
            "predictor": {
                "minReplicas": options.min_replicas,
                "maxReplicas": options.max_replicas,
                "model": served,
            }
        },
    }
    text: str = _yaml().safe_dump(document, sort_keys=False)
    if _yaml().safe_load(text) != document:
        raise Error(
            "The manifest changed when it was read back.",
            found=f"service {metadata['name']}",
            fix="please report this",
        )
    return text


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError as error:
        raise BackendMissingError(
            "The KServe manifest needs a package that is not installed.",
            found=f"no PyYAML: {error}",
            fix=pip_install("[triton]"),
        ) from error
