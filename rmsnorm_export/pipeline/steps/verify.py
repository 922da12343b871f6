"""verify: whole models against each other, and against what PyTorch computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from rmsnorm_export.errors import BackendMissingError, ExitCode
from rmsnorm_export.pipeline.identity import plain_files
from rmsnorm_export.pipeline.result import StepFailure
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps import build, export
from rmsnorm_export.pipeline.steps.base import (
    Made,
    Progress,
    options,
    outputs_of_step,
    require_package,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import StepName, Subject

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification

COMPARISONS = "comparisons"
"""Fact: one entry per comparison: its two sides, its file, whether it passed."""

_NO_GPU = "no GPU is visible"


def needs(settings: Settings) -> tuple[StepName, ...]:
    """Whatever is compared."""
    found: list[StepName] = []
    for pair in settings.pairs:
        for side in pair:
            if side == "pytorch":
                found.append("export")
            else:
                found += subject_needs(settings, cast("Subject", side))
    if _engine_asked(settings):
        found += [*subject_needs(settings, build.subject(settings)), "build"]
    return tuple(dict.fromkeys(found))


def _engine_asked(settings: Settings) -> bool:
    return settings.build is not None and settings.verify is not None and (
        settings.verify.engine != "never"
    )  # fmt: skip


def inputs(settings: Settings) -> dict[str, str]:
    """The options, both sides of every pair, and whether there is a GPU to run an engine."""
    table = settings.verify
    assert table is not None
    found = options(table, "pairs") | {"option pairs": str(settings.pairs)}
    if table.inputs is not None:
        found |= plain_files([table.inputs], settings.document.path.parent, "[verify]")
    for pair in settings.pairs:
        for side in pair:
            if side == "pytorch":
                found |= outputs_of_step(settings, "export", export.RUNS)
            else:
                found |= subject_inputs(settings, cast("Subject", side))
    if _engine_asked(settings):
        from rmsnorm_export.tensorrt.engine.backends import gpu_visible, gpus

        found["machine GPUs"] = "; ".join(gpus()) or "none"
        if gpu_visible():
            found |= subject_inputs(settings, build.subject(settings))
            found |= outputs_of_step(settings, "build", build.ENGINE)
    return found


def check(settings: Settings, force: bool) -> None:  # noqa: ARG001
    """ONNX Runtime; for ``engine = "require"`` a GPU."""
    table = settings.verify
    assert table is not None
    require_package("onnxruntime", "[verify]", 'pip install "rmsnorm-export[ort]"')
    if table.engine == "require":
        from rmsnorm_export.tensorrt.engine.backends import gpu_visible

        if not gpu_visible():
            raise BackendMissingError(
                "The engine cannot be compared here.",
                found=_NO_GPU,
                fix='run the pipeline where a GPU is, or give [verify] engine = "auto"',
            )


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Compare every pair, then the engine."""
    from rmsnorm_export.records import to_json
    from rmsnorm_export.tensorrt.engine.backends import gpu_visible

    table = settings.verify
    assert table is not None
    pairs: list[tuple[str, str]] = list(settings.pairs)
    skipped = ""
    if _engine_asked(settings):
        if gpu_visible():
            pairs.append((build.subject(settings), "engine"))
        else:
            skipped = f"engine not compared: {_NO_GPU}"
    entries, failed = [], []
    for number, (a, b) in enumerate(pairs):
        progress(f"comparing {a} with {b}", number, len(pairs))
        outcome = _against_pytorch(settings, b) if a == "pytorch" else _models(settings, a, b)
        name = f"{a}-{b}.json"
        (folder / name).write_text(to_json(outcome), encoding="utf-8")
        worst = max((output.metrics.max_abs for output in outcome.outputs), default=0.0)
        entries.append({"a": a, "b": b, "file": name, "passed": outcome.passed, "max_abs": worst})
        if not outcome.passed:
            failed.append(f"{a} and {b}: {outcome.found}")
    said = [f"{e['a']} = {e['b']}" if e["passed"] else f"{e['a']} IS NOT {e['b']}" for e in entries]
    failure = None
    if failed:
        failure = StepFailure(
            "The models differ by more than is allowed.",
            "; ".join(failed),
            "see the files in verify; [verify] rtol, atol and max_ulp set the bounds",
            int(ExitCode.VERIFICATION),
        )
    return Made(
        summary="; ".join([*said, *([skipped] if skipped else [])]),
        facts={COMPARISONS: entries, "skipped": [skipped] if skipped else []},
        failure=failure,
    )


def _models(settings: Settings, a: str, b: str) -> Verification:
    """Two files, as ``rmsnorm-export verify`` compares them."""
    from rmsnorm_export.compare.verify import verify

    table = settings.verify
    assert table is not None
    paths = [
        settings.engine if side == "engine" else settings.onnx(cast("Subject", side))
        for side in (a, b)
    ]
    return verify(
        *paths,
        inputs=table.inputs,
        shapes=table.shapes or None,
        seed=table.seed,
        atol=table.atol,
        rtol=table.rtol,
        max_ulp=table.max_ulp,
    )


def _against_pytorch(settings: Settings, side: str) -> Verification:
    """A file, graph optimization on, against what the module computed when it was exported.

    Raises:
        VerificationError: ONNX Runtime cannot load or run the file, or it has other outputs.
    """
    from rmsnorm_export.benchmark.arrays import read_arrays
    from rmsnorm_export.compare.backend import Answer
    from rmsnorm_export.compare.outputs import Bounds, RecordedCall, compare_recorded
    from rmsnorm_export.pipeline.place import read_record
    from rmsnorm_export.runtime.session import open_session

    table = settings.verify
    assert table is not None
    assert settings.export is not None
    home = settings.step_folder("export")
    record = read_record(home)
    calls = []
    for name in [] if record is None else record.facts[export.RUNS]:
        arrays = read_arrays(home / name)
        feeds = {key[3:]: value for key, value in arrays.items() if key.startswith("in:")}
        made = {key[4:]: value for key, value in arrays.items() if key.startswith("out:")}
        calls.append(RecordedCall(feeds, Answer(tuple(made), tuple(made.values()))))
    return compare_recorded(
        open_session(settings.onnx(cast("Subject", side)), optimize=True),
        calls,
        Bounds(table.atol, table.rtol, table.max_ulp),
        runtime="PyTorch",
        source=f"[export], seed {settings.export.seed}",
    )
