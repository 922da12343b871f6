"""bench: the raw model's speed against that of its targets."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.errors import ExitCode
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.pipeline.result import StepFailure
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import (
    Made,
    Progress,
    options,
    require_package,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import Bench, StepName
from rmsnorm_export.system.machine import cores, cpu_name

RECORD = "benchmark.json"
PICTURE = "benchmark.png"
BENCHMARK = "benchmark"
"""Fact: the record of the benchmark."""


def needs(settings: Settings) -> tuple[StepName, ...]:
    """The raw model."""
    return subject_needs(settings, "raw")


def _numerics(settings: Settings, table: Bench) -> Numerics:
    default: Numerics = "reordered" if settings.optimize is None else settings.optimize.numerics
    return table.numerics or default


def inputs(settings: Settings) -> dict[str, str]:
    """The options, the raw model, and the machine."""

    table = settings.bench
    assert table is not None
    return {
        **options(table, "numerics"),
        "option numerics": _numerics(settings, table),
        "machine processor": f"{cpu_name()}, {cores()} cores",
        **subject_inputs(settings, "raw"),
    }


def check(settings: Settings, force: bool) -> None:  # noqa: ARG001
    """ONNX Runtime with the providers that are named, and matplotlib for a picture."""
    from rmsnorm_export.benchmark.options import choose_providers

    table = settings.bench
    assert table is not None
    require_package("onnxruntime", "[bench]", 'pip install "rmsnorm-export[ort]"')
    if table.provider is not None:
        choose_providers(table.provider)
    if table.png:
        require_package("matplotlib", "[bench] png", 'pip install "rmsnorm-export[report]"')


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Measure."""
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.benchmark.result import headlines
    from rmsnorm_export.records import to_json

    table = settings.bench
    assert table is not None
    result = bench(
        settings.onnx("raw"),
        targets=table.targets,
        peers=table.peers,
        providers=table.provider,
        shapes=table.shapes,
        seconds=table.seconds,
        rounds=table.rounds,
        seed=table.seed,
        numerics=_numerics(settings, table),
        threads=table.threads,
        peer_seconds=table.peer_seconds,
        progress=progress,
    )
    (folder / RECORD).write_text(to_json(result), encoding="utf-8")
    if table.png:
        from rmsnorm_export.benchmark.plot import to_png

        (folder / PICTURE).write_bytes(to_png(result))
    said = headlines(result)
    failure = None
    if not result.passed:
        failure = StepFailure(
            "A target gives other outputs than the model.",
            result.reason,
            "add [prove] for a proof site by site",
            int(ExitCode.VERIFICATION),
        )
    return Made(
        summary="; ".join(said) or "nothing could be measured",
        facts={BENCHMARK: [RECORD], "headlines": said, "notes": list(result.notes)},
        failure=failure,
    )
