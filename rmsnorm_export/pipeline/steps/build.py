"""build: a TensorRT or TensorRT-RTX engine of the model."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.errors import UsageError
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import (
    Made,
    Progress,
    check_shapes,
    options,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import StepName, Subject
from rmsnorm_export.system.digest import sha256_of

ENGINE, SIDECAR = "engine", "record"
"""Facts: the engine, and the file beside it."""


def subject(settings: Settings) -> Subject:
    """What is built."""
    assert settings.build is not None
    return settings.build.model or settings.newest


def needs(settings: Settings) -> tuple[StepName, ...]:
    """The model."""
    return subject_needs(settings, subject(settings))


def inputs(settings: Settings) -> dict[str, str]:
    """The options, the model, the backend, the GPUs, and the plugin that would be used."""
    from rmsnorm_export.tensorrt.engine.backends import choose, gpus
    from rmsnorm_export.tensorrt.engine.plugins import library_or_none

    table = settings.build
    assert table is not None
    info, _ = choose(table.backend)
    library = library_or_none() if info.plugins and table.plugin != "never" else ""
    return {
        **options(table, "model", "memory_limit"),
        "option memory_limit": str(settings.memory_limit),
        "option model": subject(settings),
        "machine backend": info.name,
        "machine GPUs": "; ".join(gpus()) or "none",
        "machine plugin": sha256_of(Path(library)) if library else "none",
        **subject_inputs(settings, subject(settings)),
    }


def check(settings: Settings, force: bool) -> None:  # noqa: ARG001
    """The backend, whether it can do what is asked of it, and the shapes.

    Raises:
        BackendMissingError: it is not installed, or builds only where a GPU is.
        UsageError: an option that it does not have, or shapes that do not fit.
    """
    from rmsnorm_export.tensorrt.engine.backends import choose
    from rmsnorm_export.tensorrt.engine.options import BuildOptions
    from rmsnorm_export.tensorrt.engine.plugins import plan_plugin

    table = settings.build
    assert table is not None
    info, _ = choose(table.backend)
    BuildOptions(
        table.plugin, table.embed_plugin, table.version_compatible, table.hardware_compatible,
        table.tf32, settings.memory_limit,
    ).check(info)  # fmt: skip
    check_shapes(settings, table.shapes)
    if table.plugin == "require":
        plan_plugin("require", info, own=True)
    if settings.package and settings.package.model == ENGINE and not info.plugins:
        raise UsageError(
            "Triton's TensorRT backend does not run an engine of TensorRT-RTX.",
            found=f'[build] backend = "{table.backend}" comes to {info.name} here',
            fix='give [build] backend = "tensorrt", or package the ONNX model',
        )


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Build."""
    from rmsnorm_export.tensorrt.engine.build import build_engine

    table = settings.build
    assert table is not None
    built = build_engine(
        settings.onnx(subject(settings)),
        folder / settings.engine.name,
        backend=table.backend,
        shapes=table.shapes,
        plugin=table.plugin,
        embed_plugin=table.embed_plugin,
        timing_cache=table.timing_cache,
        version_compatible=table.version_compatible,
        hardware_compatible=table.hardware_compatible,
        tf32=table.tf32,
        memory_limit=settings.memory_limit,
        progress=progress,
    )
    record = built.record
    how = [norm.how for norm in record.norms]
    counts = ", ".join(f"{how.count(one)} {one}" for one in dict.fromkeys(how))
    return Made(
        summary=f"{record.backend} {record.version}: {record.bytes / 2**20:.1f} MiB"
        + (f", norms: {counts}" if counts else ""),
        facts={
            ENGINE: [built.path.name],
            SIDECAR: [built.sidecar.name],
            "backend": record.backend,
            "version": record.version,
            "bytes": record.bytes,
            "norms": {one: how.count(one) for one in dict.fromkeys(how)},
            "layers": len(record.layers),
            "notes": list(record.notes),
        },
    )
