"""A deployment: a verdict and a line for each step; on a page then what each of them found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.deploy.packaged import Packaged
from rmsnorm_export.deploy.result import Deployment, StepOutcome
from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show import section_of
from rmsnorm_export.show.page import Facts, Page, Section, Table
from rmsnorm_export.show.report import report_sections
from rmsnorm_export.show.text import Line, Verdict, headline, table
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.engine.result import EngineRecord

_STATE_STYLES = {"done": "green", "failed": "bold red", "not run": "yellow"}
_HEADS = ("step", "state", "time", "what came out")


def _deployment_verdict(deployment: Deployment) -> Verdict:
    name, states = printable(deployment.name), [step.state for step in deployment.steps]
    if deployment.dry_run:
        may = f", {states.count('may run')} more may have to" if "may run" in states else ""
        planned = f"{states.count('would run')} of {plural(len(states), 'step')} would run{may}"
        return f"{name}: {planned}; nothing was changed", ""
    done, skipped = states.count("done"), states.count("skipped")
    counts = f"{done} done, {skipped} up to date, {deployment.seconds:.1f} s"
    if deployment.failed is not None:
        return f"{name}: {deployment.failed.name} FAILED ({counts})", "bad"
    how_far = "deployed" if done + skipped == len(states) else "as far as asked"
    return f"{name}: {how_far} ({counts})", "good"


def deployment_lines(deployment: Deployment, *, verbose: int = 0) -> list[Line]:
    """Return the lines of a run; with ``verbose`` above 0 reasons and files of every step."""
    text, kind = _deployment_verdict(deployment)
    lines: list[Line] = [headline((text, kind)) if kind else text]
    if verbose < 0:
        return lines
    lines += [f"  {printable(str(deployment.path))} -> {printable(str(deployment.folder))}", ""]
    heads, *texts = table([_HEADS, *map(_texts, deployment.steps)], right=(2,))
    lines.append((heads, "bold"))
    for step, row in zip(deployment.steps, texts, strict=True):
        lines.append((row, _STATE_STYLES.get(step.state, "")))
        if verbose > 0:
            lines += [f"      because  {one_line(step.why)}"] if step.why else []
        if verbose > 0 and step.stamp is not None:
            lines += [f"      file   {printable(name)}" for name in step.stamp.outputs]
            lines += [f"      note   {one_line(note)}" for note in step.stamp.notes]
    return lines


def deployment_tables(deployment: Deployment) -> list[Table]:
    """Return a row for each step."""
    heads = [head.capitalize() for head in _HEADS]
    return [Table("Steps", heads, [_texts(step) for step in deployment.steps], numbers=("Time",))]


def _texts(step: StepOutcome) -> list[str]:
    what = step.summary or step.why
    if step.failure is not None:
        what = f"{step.failure.what} {step.failure.found}".strip()
    time = f"{step.seconds:.1f} s" if step.state in ("done", "skipped", "failed") else ""
    return [step.name, step.state, time, one_line(what)]


def deployment_page(deployment: Deployment) -> Page:
    """Return the page of a run; results are read from the folders of the steps.

    A result that cannot be read any more has no section; the table of steps is always there.
    """
    facts = [
        ("Pipeline", str(deployment.path)),
        ("Folder", str(deployment.folder)),
        ("Time", f"{deployment.seconds:.1f} s"),
    ]
    failures = [
        Facts(
            [
                ("Step", step.name),
                ("Error", step.failure.what),
                ("Found", step.failure.found),
                ("Fix", step.failure.fix),
            ]
        )
        for step in deployment.steps
        if step.failure is not None
    ]
    return Page(
        "Deployment",
        deployment.name,
        [_deployment_verdict(deployment)],
        [*failures, *deployment_tables(deployment), Facts(facts)],
        [section for step in deployment.steps for section in _sections(step)],
    )


_DOCUMENTS: dict[str, type] = {
    "report": Report,
    "verification": Verification,
    "engine_record": EngineRecord,
    "benchmark": Benchmark,
    "packaged": Packaged,
}
"""Kind of a document that a step writes -> its class."""


def _sections(step: StepOutcome) -> Iterator[Section]:
    """Yield what the documents of a step say."""
    for name in step.stamp.outputs if step.stamp is not None else ():
        if not name.endswith(".json") or name.startswith(".."):
            continue
        with contextlib.suppress(OSError, ValueError, InputError):
            text = read_file(step.folder / name)
            kind = parse_json(text).get("kind")
            if kind == "report":
                yield from report_sections(from_json(text, Report))
            elif kind in _DOCUMENTS:
                yield section_of(from_json(text, _DOCUMENTS[kind]), name.removesuffix(".json"))
