"""A decoder as a folder of ONNX files that generate, with every RMSNorm as one node."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.bundle import write_models
from rmsnorm_export.options import takes
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.options import GenerationOptions
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.torch.generation.components import Component, sample_inputs, trace_components
from rmsnorm_export.torch.generation.names import name_as_optimum, name_dimensions

if TYPE_CHECKING:
    import onnx_ir as ir

MANIFEST = "export.json"
"""Of transformers: the components of a folder, and what its runner needs to call them."""


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
        folder = check_folder(path, force=force)
        with _writing(folder), Stage(folder) as stage:
            write_models(self.models, stage.folder)
            if self.manifest is not None:
                text = json.dumps(self.manifest, indent=2) + "\n"
                (stage.folder / MANIFEST).write_text(text, encoding="utf-8")
            for config in self.configs:
                config.save_pretrained(stage.folder)
            written = sorted(entry.name for entry in stage.folder.iterdir())
            stage.keep({*written, *_own_files(folder)})
            stage.publish()
        return GenerationExport(
            path=folder,
            reports=self.reports,
            files=tuple(folder / name for name in written),
            log=self.log,
            seconds=self.seconds + time.perf_counter() - start,
        )


@takes(GenerationOptions)
def export_generation(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Mapping[str, Any] | None,
    options: GenerationOptions,
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
        inputs: of ``model.generate``, by name; None: ``input_ids`` of two rows of five tokens, one
            padded on the left.

    Returns:
        What was written, with a report for each component.

    Raises:
        UsageError: an option cannot be used, or the folder exists and ``force`` is not given.
        InputError: the model cannot generate or be exported, or the folder cannot be written.
        BackendMissingError: PyTorch, onnxscript, or a transformers with exporters is missing.
    """
    check_folder(path, force=options.force)
    return make_decoder(model, inputs, options).save(path, force=options.force)


def make_decoder(
    model: Any, inputs: Mapping[str, Any] | None, options: GenerationOptions
) -> Decoder:
    """As `export_generation`, without writing anything."""
    start = time.perf_counter()
    tell = _teller(options)
    if options.names == "optimum":
        options = dataclasses.replace(options, multi_token=True)
    components, log = trace_components(model, sample_inputs(model, inputs or {}), options, tell)
    models: dict[str, ir.Model] = {}
    reports: dict[str, Report] = {}
    for component in components:
        tell(f"recognising the norms of {component.name}")
        name_dimensions(component.model, options.static_cache)
        if options.names == "optimum":
            name_as_optimum(component.model.graph)
        result = optimize(
            component.model,
            target=options.target,
            numerics=options.numerics,
            prove=options.prove,
            seed=options.seed,
            drawings=options.drawings,
        )
        name = "model" if options.names == "optimum" else component.name
        models[name] = result.model
        source = f"{type(model).__name__}, {component.name}"
        reports[name] = dataclasses.replace(result.report, source=source)
    return Decoder(
        models=models,
        reports=reports,
        manifest=_manifest(components) if options.names == "transformers" else None,
        configs=(model.config, model.generation_config),
        log=log,
        seconds=time.perf_counter() - start,
    )


def check_folder(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The absolute path of a folder that can be made, or replaced with ``force``.

    Raises:
        UsageError: it exists and is not empty, and ``force`` is not given.
        InputError: it is a file, or its parent is missing.
    """
    folder = Path(os.path.abspath(path))
    if not folder.parent.is_dir():
        raise InputError(
            "The folder above the output does not exist.",
            found=str(folder.parent),
            fix="make it first, or check the path",
        )
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(
            "The output of a generation export is a folder.",
            found=f"{folder} is a file",
            fix="give the name of a folder, e.g. -o decoder/",
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(
            "The folder of the output is not empty.",
            found=str(folder),
            fix="choose another one, or use --force to replace the export in it",
        )
    return folder


def _own_files(folder: Path) -> Iterator[str]:
    """Models that an earlier export left there, which its manifest names."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for entry in json.loads((folder / MANIFEST).read_text("utf-8"))["components"].values():
            name = Path(str(entry["file"])).name
            yield from (name, f"{name}.data")


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


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    with refusals_as(
        "The folder cannot be written.",
        folder,
        fix="check the folder and its permissions; nothing was changed",
        fix_full="free some space, or write to another place; nothing was changed",
    ):
        yield


def _teller(options: GenerationOptions) -> Callable[[str], None]:
    def tell(stage: str) -> None:
        if options.progress is not None:
            options.progress(stage, 0, 1)

    return tell
