"""The options of ``package``: how the server runs the model, and what goes into the card."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import (
    Count,
    FilePath,
    Most,
    Options,
    only_api,
    option,
    progress_option,
)
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, dims_option, shapes_option
from rmsnorm_export.serving.result import InstanceKind
from rmsnorm_export.system.progress import ProgressChoice

if TYPE_CHECKING:
    from rmsnorm_export.serving.kserve import KServe
else:
    KServe = Any  # protobuf is not loaded for --help


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackageOptions(Options):
    """The options of ``package_model``, of the command ``package`` and of the table [package]."""

    name: str | None = option(None, help="Name of the model.", shown="of the file")
    version: Count = option(1, metavar="N", help="Version; those that are there are kept.")
    backend: Literal["auto", "onnxruntime", "tensorrt"] = option(
        "auto", cli=False, toml=False, help="auto: tensorrt for an engine, else onnxruntime."
    )
    max_batch: Most | None = option(
        None,
        metavar="N",
        help="Most requests in a batch; 0: none.",
        shown="of the shapes or the engine, or 8, where all inputs and outputs share a dynamic "
        "leading axis",
    )
    dynamic_batching: bool | None = option(
        None, cli=False, help="Let the server join requests.", shown="where there are batches"
    )
    preferred_batch_sizes: Sequence[Count] = option(
        (),
        cli=False,
        flag="--preferred-batch",
        metavar="N",
        help="Batch size that does not wait for more requests. Repeat for several.",
    )
    queue_delay_us: Most | None = option(
        None,
        cli=False,
        flag="--queue-delay",
        metavar="US",
        help="Most microseconds that a request waits for others.",
        shown="100",
    )
    instances: Count | None = option(
        None,
        cli=False,
        metavar="N",
        help="Copies of the model on every GPU, or on the CPU.",
        shown="1",
    )
    kind: InstanceKind | None = option(None, help="Where it runs.", shown="gpu")
    warmup: bool | None = option(
        None,
        cli=False,
        help="Let the server answer requests of the usual and the largest shape before it takes "
        "any.",
        shown="where it can",
    )
    shapes: Shapes | None = shapes_option(
        RANGES,
        metavar='"NAME=MIN,OPT,MAX;..."',
        help="Shapes of requests, as for build: for the check and the warm-up of a model with "
        "dynamic sizes. An engine has its own.",
    )
    dims: Dims | None = dims_option(RANGES)
    onnx: FilePath | None = option(
        None,
        cli=False,
        toml=False,
        metavar="FILE",
        help="Model that an engine was built from, where it is not beside it.",
    )
    plugin: FilePath | None = option(
        None,
        flag="--plugin",
        metavar="FILE",
        help="Plugin for an engine that uses it; or for a model that ONNX Runtime runs the "
        "kernels of plugin build --runtime onnxruntime: on GPUs those with --cuda, else with "
        "--kind cpu.",
        shown="for an engine that of plugin build which fits this machine best, for a model none",
    )
    report: FilePath | None = option(
        None,
        toml=False,
        metavar="FILE",
        help="optimize --report FILE.json, for the model card: its classes and proofs.",
    )
    benchmarks: Sequence[FilePath] = option(
        (),
        cli=False,
        flag="--benchmark",
        toml=False,
        metavar="FILE",
        help="Record of a benchmark (JSON), for the model card. Repeat for several.",
    )
    kserve: KServe | None = only_api(None, help="Write an InferenceService manifest, too.")
    client: str = only_api("", help="Python that asks the model, for the model card.")
    check: bool = option(
        True, cli=False, help="Do not run the packaged model in ONNX Runtime on the CPU."
    )
    require_verified: bool = option(
        False,
        cli=False,
        help="Write nothing, and end with exit code 7, where the packaged model could not be run "
        "here to check it.",
    )
    force: bool = option(
        False,
        toml=False,
        help="Replace the version, and write the configuration anew. Files that this tool did not "
        "make are kept.",
    )
    progress: ProgressChoice = progress_option()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions(Options):
    """The manifest of KServe, as the command line and the table [package] ask for it."""

    kserve: str | None = option(
        None,
        metavar="URI",
        help="Write a KServe InferenceService, too. URI: where the cluster finds the repository, "
        "e.g. s3://bucket/models or pvc://claim/models.",
    )
    kserve_name: str | None = option(
        None, metavar="NAME", help="Of the service.", shown="of the model"
    )
    kserve_namespace: str | None = option(None, metavar="NAME", help="Of the service.")
    kserve_cpu: str | None = option(None, metavar="N", help="Cores of a replica.", shown="4")
    kserve_memory: str | None = option(None, metavar="SIZE", help="Of a replica.", shown="16Gi")
    kserve_gpus: Most | None = option(
        None,
        metavar="N",
        help="Of a replica.",
        shown="1, and 0 with --kind cpu",
    )
    kserve_replicas: tuple[Most, Most] | None = option(
        None,
        metavar="MIN MAX",
        help="Least and most replicas.",
        shown="1 1",
    )

    def agree(self) -> None:
        for field in dataclasses.fields(self):
            if self.kserve is None and getattr(self, field.name) is not None:
                raise UsageError(
                    "Options of the KServe manifest need the place of the repository.",
                    found=f"{field.name}, and no kserve",
                    fix="give it with --kserve URI, e.g. --kserve pvc://claim/models",
                )

    def manifest(self) -> KServe | None:
        """What ``package_model`` takes; None when no manifest is asked for."""
        if self.kserve is None:
            return None
        from rmsnorm_export.serving.kserve import KServe

        names = ("name", "namespace", "cpu", "memory", "gpus")
        values = {name: getattr(self, f"kserve_{name}") for name in names}
        if self.kserve_replicas is not None:
            values["min_replicas"], values["max_replicas"] = self.kserve_replicas
        given = {name: value for name, value in values.items() if value is not None}
        return KServe(self.kserve, **given)
