"""A decoder as a folder of ONNX files that generate, with every RMSNorm as one node."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.folder import check_folder, new_folder, write_manifest, write_models
from rmsnorm_export.options import takes
from rmsnorm_export.rewrite.caches import write_rows
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.torch.generation.components import (
    Component,
    check_generative,
    sample_inputs,
    trace_components,
)
from rmsnorm_export.torch.generation.names import States, name_as_optimum, name_dimensions
from rmsnorm_export.torch_options import GenerationOptions

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A model that generates, as optimized graphs in memory; its weights are still the model's.

    Attributes:
        models: the graphs, by the names of their files.
        reports: of each graph: every norm, its node, its module, its class.
        manifest: what transformers' runner needs; None with other names than its own.
        configs: of the model and of its generation.
        log: what the exporters printed, logged and warned of.
        seconds: wall-clock time of making them.
    """

    models: Mapping[str, ir.Model]
    reports: Mapping[str, Report]
    manifest: Mapping[str, Any] | None
    configs: tuple[Any, ...]
    log: str
    seconds: float

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> GenerationExport:
        """Write the folder, whole or not at all.

        Raises:
            UsageError: it exists, is not empty, and ``force`` is not given.
            InputError: it cannot be written.
        """
        start = time.perf_counter()
        with new_folder(path, force=force) as folder:
            write_models(self.models, folder)
            if self.manifest is not None:
                write_manifest(folder, self.manifest)
            for config in self.configs:
                config.save_pretrained(folder)
            written = sorted(entry.name for entry in folder.iterdir())
        final = Path(os.path.abspath(path))
        return GenerationExport(
            path=final,
            reports=self.reports,
            files=tuple(final / name for name in written),
            log=self.log,
            seconds=self.seconds + time.perf_counter() - start,
        )


@takes(GenerationOptions)
def export_generation(
    model: Any, path: str | os.PathLike[str], options: GenerationOptions
) -> GenerationExport:
    """Export a model that generates, with its cache: as prefill and decode, or as one graph.

    transformers' exporter splits the model and traces its parts (``transformers.exporters``); the
    norms of each become one node, named after their modules. The folder is one that
    ``transformers.exporters.base.ExportedModel.from_pretrained`` loads: ``export.json``, the
    configs, and ``NAME.onnx`` with ``NAME.onnx.data`` for each component. Weights of several
    components are stored once, in the first one's data.

    Args:
        model: a model of transformers; left as it is.
        path: the folder to make, whole or not at all.

    Returns:
        What was written, with a report for each component.

    Raises:
        UsageError: an option cannot be used, or the folder exists and ``force`` is not given.
        InputError: the model cannot generate or be exported, or the folder cannot be written.
        BackendMissingError: PyTorch, onnxscript, or a transformers with exporters is missing.
    """
    check_folder(path, force=options.force)
    return make_decoder(model, options).save(path, force=options.force)


def make_decoder(model: Any, options: GenerationOptions) -> Decoder:
    """As `export_generation`, without writing anything."""
    start = time.perf_counter()
    tell = _teller(options)
    check_generative(model)
    if options.names == "optimum":
        options = dataclasses.replace(options, multi_token=True)
    components, log = trace_components(
        model, sample_inputs(model, options.inputs or {}), options, tell
    )
    models: dict[str, ir.Model] = {}
    reports: dict[str, Report] = {}
    states: States = {}
    for component in components:
        tell(f"recognising the norms of {component.name}")
        name_dimensions(component.model, options.static_cache, states)
        if options.names == "optimum":
            name_as_optimum(component.model.graph)
        result = optimize(
            component.model,
            target=options.target,
            runtime=options.runtime,
            numerics=options.numerics,
            prove=options.prove,
            fusions=options.fusions,
            seed=options.seed,
            kernels=options.kernels,
            progress=options.progress,
            drawings=options.drawings,
        )
        if options.target != "plain":  # which is as the exporter gives it
            write_rows(result.model)
        name = "model" if options.names == "optimum" else component.name
        models[name] = result.model
        source = f"{type(model).__name__}, {component.name}"
        reports[name] = dataclasses.replace(result.report, source=source)
        if options.fusions is not None:
            component.metadata.export_config |= {"ort_fusions": options.fusions, "optimize": True}
    if options.fusions is not None:
        from rmsnorm_export.rewrite.shared import share_weights

        share_weights(models.values())
    return Decoder(
        models=models,
        reports=reports,
        manifest=_manifest(components) if options.names == "transformers" else None,
        configs=(model.config, model.generation_config),
        log=log,
        seconds=time.perf_counter() - start,
    )


def plain_component(
    model: Any, inputs: Mapping[str, Any], name: str, settings: Mapping[str, Any], folder: Path
) -> Path:
    """A component as the exporter gives it, every norm spelled out.

    Args:
        model, inputs: as for `export_generation`.
        name: of the component.
        settings: how it was exported, as the manifest says.
        folder: where the file is written.

    Raises:
        InputError: the model cannot be exported so, or has no such component.
    """
    options = GenerationOptions(
        multi_token=bool(settings.get("multi_token_decode")),
        static_cache=settings.get("static_cache"),
    )
    components, _ = trace_components(model, sample_inputs(model, inputs), options, lambda _: None)
    states: States = {}
    for component in components:
        name_dimensions(component.model, options.static_cache, states)
        if component.name == name:
            return write_models({name: component.model}, folder)[0]
    raise InputError(
        "The model has no such component.",
        found=f"{name}; it has {', '.join(component.name for component in components)}",
        fix="export the model again",
    )


def _manifest(components: list[Component]) -> dict[str, Any]:
    from transformers.exporters.base import EXPORT_SCHEMA_VERSION

    return {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "export_format": "onnx",
        "components": {
            component.name: {
                "file": f"{component.name}.onnx",
                "metadata": dataclasses.asdict(component.metadata),
            }
            for component in components
        },
    }


def _teller(options: GenerationOptions) -> Callable[[str], None]:
    def tell(stage: str) -> None:
        if options.progress:
            options.progress(stage, 0, 1)

    return tell
