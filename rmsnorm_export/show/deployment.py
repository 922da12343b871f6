"""A deployment: a verdict and a line for each step; on a page then what each of them found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.errors import InputError
from rmsnorm_export.pipeline.result import Deployment, StepOutcome
from rmsnorm_export.pipeline.steps import bench, build, package, verify
from rmsnorm_export.pipeline.steps.base import REPORT
from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.show.benchmark import benchmark_section
from rmsnorm_export.show.engine import engine_section
from rmsnorm_export.show.package import package_section
from rmsnorm_export.show.page.document import (
    About,
    Section,
    document,
    page_notes,
    problem_box,
    summary,
)
from rmsnorm_export.show.page.markup import Content, Markup, Pairs, badge, code, facts, join, tag
from rmsnorm_export.show.page.plain_table import bare_table, plain_table
from rmsnorm_export.show.report import report_sections
from rmsnorm_export.show.text import Line, Verdict, headline, table
from rmsnorm_export.show.verification import verification_section
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.engine.result import EngineRecord

Stored = TypeVar("Stored")

_STATE_STYLES = {"done": "green", "skipped": "", "failed": "bold red", "not run": "yellow"}
_BADGES = {"done": "good", "failed": "bad", "not run": "warn"}
_PLANS = {"run": "would run", "skip": "up to date", "maybe": "may run"}
_STEP_HEADS = ("Step", "State", "Seconds", "What came out")


def _deployment_verdict(deployment: Deployment) -> Verdict:
    name, steps = printable(deployment.name), deployment.steps
    if deployment.dry_run:
        runs = sum(step.plan == "run" for step in steps)
        may = sum(step.plan == "maybe" for step in steps)
        also = f", {may} more may have to" if may else ""
        planned = f"{runs} of {plural(len(steps), 'step')} would run{also}"
        return f"{name}: {planned}; nothing was changed", ""
    done = sum(step.state == "done" for step in steps)
    skipped = sum(step.state == "skipped" for step in steps)
    counts = f"{done} done, {skipped} up to date, {deployment.seconds:.1f} s"
    if deployment.failed is not None:
        return f"{name}: {deployment.failed.name} FAILED ({counts})", "bad"
    how_far = "deployed" if done + skipped == len(steps) else "as far as asked"
    return f"{name}: {how_far} ({counts})", "good"


def _step_notes(step: StepOutcome) -> list[str]:
    return [one_line(str(note)) for note in step.facts.get("notes", ())]


def deployment_lines(deployment: Deployment, *, verbose: int = 0) -> list[Line]:
    """The lines of a run; with ``verbose`` above 0 the reasons and files of every step."""
    text, kind = _deployment_verdict(deployment)
    lines: list[Line] = [headline((text, kind)) if kind else text]
    if verbose < 0:
        return lines
    lines += [f"  {printable(str(deployment.path))} -> {printable(str(deployment.folder))}", ""]
    dry_run = deployment.dry_run
    rows = [["step", "state", "time", "why" if dry_run else "what came out"]]
    rows += [_step_texts(step, dry_run=dry_run) for step in deployment.steps]
    heads, *texts = table(rows, right=(2,))
    lines.append((heads, "bold"))
    for step, text in zip(deployment.steps, texts, strict=True):
        lines.append((text, "" if dry_run else _STATE_STYLES[step.state]))
        if verbose > 0:
            lines += [f"      ran because  {one_line(step.why)}"] if step.state == "done" else []
            lines += [f"      file   {printable(name)}" for name in step.outputs]
            lines += [f"      note   {note}" for note in _step_notes(step)]
    return lines


def deployment_tables(deployment: Deployment) -> list[Markup]:
    """For a notebook: a row for each step."""
    dry_run = deployment.dry_run
    heads = ("Step", "State", "Time", "Why" if dry_run else "What came out")
    rows = [_step_texts(step, dry_run=dry_run) for step in deployment.steps]
    return [bare_table("Steps", heads, rows, numbers=("Time",))]


def step_line(step: StepOutcome) -> str:
    """One step on one line, while others still run."""
    return "  ".join(part for part in (f"{step.name:8}", *_step_texts(step)[1:]) if part)


def _step_texts(step: StepOutcome, *, dry_run: bool = False) -> list[str]:
    if dry_run:
        return [step.name, _PLANS[step.plan], "", one_line(step.why)]
    what = step.summary
    if step.failure is not None:
        what = f"{one_line(step.failure.what)} {one_line(step.failure.found)}".strip()
    elif step.state == "not run":
        what = step.why
    time = "" if step.state == "not run" else f"{step.seconds:.1f} s"
    return [step.name, step.state, time, one_line(what)]


def deployment_page(deployment: Deployment, *, about: About) -> str:
    """The page of a run; results are read from the folders of the steps.

    A result that cannot be read any more has no section; the table of steps is always there.
    """
    sections = [_deployment_summary(deployment, about)]
    steps = {step.name: step for step in deployment.steps if step.facts}
    if "prove" in steps:
        steps.pop("optimize", None)
    for name, made in _SECTIONS.items():
        if name in steps:
            with contextlib.suppress(OSError, ValueError, InputError):
                sections += made(steps[name])
    return document("Deployment", deployment.name, sections)


def _deployment_summary(deployment: Deployment, about: About) -> Section:
    pairs: Pairs = [
        ("Pipeline", code(str(deployment.path))),
        ("Folder", code(str(deployment.folder))),
        ("Time", f"{deployment.seconds:.1f} s"),
        ("Date", deployment.date),
        ("Made by", deployment.tool),
        *dataclasses.replace(about, date="").pairs(),
    ]
    failures = [
        problem_box(step.failure.what, step.failure.found, step.failure.fix, [("Step", step.name)])
        for step in deployment.steps
        if step.failure is not None
    ]
    cautions = [_cautions(step, deployment) for step in deployment.steps]
    verdicts: list[Verdict] = [_deployment_verdict(deployment)]
    if count := sum(map(len, cautions)):
        verdicts.append((f"{plural(count, 'thing')} to look at, in the table", "warn"))
    rows = map(_step_row, deployment.steps, cautions)
    notes = [
        note
        for step in deployment.steps
        for note in page_notes(_step_notes(step), f"Note on {step.name}")
    ]
    return summary(
        verdicts,
        dataclasses.replace(about, problem=None),
        *failures,
        plain_table("Steps", _STEP_HEADS, rows, numbers=("Seconds",)),
        facts(pairs, "facts wide"),
        *notes,
        count=len(deployment.steps),
    )


def _step_row(step: StepOutcome, cautions: Sequence[str]) -> list[Content]:
    """A row; what a failed step found stands below its summary, and nowhere else."""
    kind = _BADGES.get(step.state)
    ran = {"done": "ran because", "skipped": "did not run because"}.get(step.state, "because")
    return [
        step.name,
        badge(step.state, kind) if kind else step.state,
        f"{step.seconds:.1f}",
        join(
            [
                tag("p", one_line(step.summary)) if step.summary else None,
                *(tag("p", badge("look", "warn"), " ", text) for text in cautions),
                tag("p", f"{ran} {one_line(step.why)}", class_="note") if step.why else None,
            ]
        ),
    ]


def _cautions(step: StepOutcome, deployment: Deployment) -> list[str]:
    """What came out of a step that did not fail, and a reader should not take for the best case."""
    facts = step.facts
    found = []
    if left := facts.get("refused"):
        found.append(f"{plural(left, 'RMSNorm')} stayed as before")
    norms: dict[str, int] = facts.get("norms", {})
    if several := norms.get("unfused"):
        found.append(f"{several} of {plural(sum(norms.values()), 'RMSNorm')} take several kernels")
    if unknown := norms.get("unknown"):
        found.append(f"of {plural(unknown, 'RMSNorm')} it is not known what became of them")
    found += [one_line(text) for text in facts.get("skipped", ())]
    found += [
        f"{entry['a']} and {entry['b']} could not be compared"
        for entry in facts.get(verify.COMPARISONS, ())
        if entry["verdict"] in ("not compared", "not run")
    ]
    found += [
        f"{place}: no variant is faster than raw"
        for place, _, text in (line.partition(": ") for line in facts.get("headlines", ()))
        if "faster" not in text
    ]
    for outcome in ("skipped", "not run"):
        if count := facts.get("checks", {}).get(outcome):
            found.append(f"{plural(count, 'check')} of the package: {outcome}")
    served = {one.facts.get("backend") for one in deployment.steps if one.name == "package"}
    if step.name == "build" and facts and served == {"onnxruntime"}:
        found.append("the engine is not in the package: Triton serves the ONNX file")
    if facts.get("not run"):
        found.append(f"the module was not run: {one_line(str(facts['not run']))}")
    return found


def _read_result(step: StepOutcome, name: str, cls: type[Stored]) -> Stored:
    return from_json(read_file(step.folder / name), cls)


def _comparisons(step: StepOutcome) -> Iterator[Section]:
    for entry in step.facts[verify.COMPARISONS]:
        a, b = str(entry["a"]), str(entry["b"])
        with contextlib.suppress(OSError, ValueError, InputError):
            outcome = _read_result(step, str(entry["file"]), Verification)
            section = verification_section(outcome, a, b)
            yield dataclasses.replace(section, id=f"verification-{a}-{b}", title=f"{a} and {b}")


def _report(step: StepOutcome) -> Iterable[Section]:
    """What was rewritten, with the proofs where there are some."""
    return report_sections(_read_result(step, REPORT, Report))


_SECTIONS: dict[str, Callable[[StepOutcome], Iterable[Section]]] = {
    "optimize": _report,
    "prove": _report,
    "build": lambda step: [
        engine_section(_read_result(step, str(step.facts[build.SIDECAR][0]), EngineRecord))
    ],
    "verify": _comparisons,
    "bench": lambda step: [benchmark_section(_read_result(step, bench.RECORD, Benchmark))],
    "package": lambda step: [package_section(_read_result(step, package.PACKAGED, Packaged))],
}
"""What the result of a step is on the page, in the order of the page."""
