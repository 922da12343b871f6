"""A deployment and a package: a verdict, and what each step or model came to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.deploy.repository import Packaged, PackagedModel
from rmsnorm_export.deploy.result import Deployment, StepOutcome
from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.records import from_json, kind_of, parse_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show import show_blocks
from rmsnorm_export.show.text import Block, Line, Table, note_lines, under
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.engine.result import EngineRecord

_STATE_STYLES = {"done": "good", "failed": "bad", "not run": "warn"}

_RESULTS = (Report, Verification, EngineRecord, Benchmark, Packaged)
_DOCUMENTS: dict[str, type] = {kind_of(result): result for result in _RESULTS}
"""Kind of a document that a step writes -> its class."""


def deployment_blocks(deployment: Deployment, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a run; with ``verbose`` > 0 why, files and results of every step."""
    lines: list[Block] = [_verdict(deployment)]
    if verbose < 0:
        return lines
    lines.append(f"  {deployment.path} -> {deployment.folder}")
    heads = ("step", "state", "time", "result")
    rows = [_texts(step) for step in deployment.steps]
    styles = [_STATE_STYLES.get(step.state, "") for step in deployment.steps]
    lines.append(Table("", heads, rows, numbers=("time",), styles=styles))
    for step in deployment.steps if verbose > 0 else ():
        details: list[Block] = [f"  because  {one_line(step.why)}"] if step.why else []
        details += [f"  file     {name}" for name in step.outputs]
        details += [f"  note     {one_line(note)}" for note in step.notes]
        if step.failure is not None:
            details.append(f"  fix      {one_line(step.failure.fix)}")
        lines += under(step.name, [*details, *_results(deployment.folder / step.name, step)])
    return lines


def _verdict(deployment: Deployment) -> Line:
    name, states = deployment.name, [step.state for step in deployment.steps]
    done, skipped = states.count("done"), states.count("skipped")
    counts = f"{done} done, {skipped} up to date, {deployment.seconds:.1f} s"
    if "failed" in states:
        failed = deployment.steps[states.index("failed")].name
        return f"{name}: {failed} FAILED ({counts})", "bad"
    if deployment.dry_run:
        may = f", {states.count('may run')} more may have to" if "may run" in states else ""
        planned = f"{states.count('would run')} of {plural(len(states), 'step')} would run{may}"
        return f"{name}: {planned}; nothing was changed"
    how_far = "complete" if done + skipped == len(states) else "as far as asked"
    return f"{name}: {how_far} ({counts})", "good"


def _texts(step: StepOutcome) -> list[str]:
    result = step.summary or step.why
    if step.failure is not None:
        result = f"{step.failure.what} {step.failure.found}".strip()
    time = f"{step.seconds:.1f} s" if step.state in ("done", "skipped", "failed") else ""
    return [step.name, step.state, time, one_line(result)]


def _results(folder: Path, step: StepOutcome) -> Iterator[Block]:
    """Yield the lines of the documents of a step; those that cannot be read any more have none."""
    for name in step.outputs:
        if not name.endswith(".json") or name.startswith(".."):
            continue
        with contextlib.suppress(OSError, ValueError, InputError):
            text = read_file(folder / name)
            kind = parse_json(text).get("kind")
            if kind in _DOCUMENTS:
                result: object = from_json(text, _DOCUMENTS[kind])
                yield from under(name[: -len(".json")], show_blocks(result, verbose=1))


def packaged_blocks(packaged: Packaged, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a package."""
    lines: list[Block] = [_package_verdict(model) for model in packaged.models]
    if verbose < 0:
        return lines
    lines.append("")
    for model in packaged.models:
        asked = f"asked of {model.name}" if len(packaged.models) > 1 else "asked"
        lines.append(f"{asked}: {one_line(model.answers, 300)}")
        if model.load:
            lines.append(f"the server loads the plugin with {model.load}")
    notes = dict.fromkeys(note for model in packaged.models for note in model.notes)
    wrote = ", ".join(str(packaged.path / model.name) for model in packaged.models)
    return [*lines, *note_lines(notes), f"wrote {wrote}"]


def _package_verdict(model: PackagedModel) -> Line:
    most = f"batches up to {model.max_batch}" if model.max_batch else "no batches"
    return f"packaged {model.name}, version {model.version}, for {model.backend}: {most}", "bold"
