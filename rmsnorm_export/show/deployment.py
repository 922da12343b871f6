"""A deployment: a verdict and a line for each step; on a page then what each of them found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.deploy.packaged import Packaged
from rmsnorm_export.deploy.result import Deployment, StepOutcome
from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.benchmark import benchmark_section
from rmsnorm_export.show.engine import engine_section
from rmsnorm_export.show.package import package_section
from rmsnorm_export.show.page.document import About, Section, document, problem_box, summary
from rmsnorm_export.show.page.markup import Markup, Pairs, code, facts
from rmsnorm_export.show.page.plain_table import bare_table, plain_table
from rmsnorm_export.show.report import report_sections
from rmsnorm_export.show.text import Line, Verdict, headline, table
from rmsnorm_export.show.verification import verification_section
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


def deployment_tables(deployment: Deployment) -> list[Markup]:
    """Return a row for each step, for a notebook."""
    rows = [_texts(step) for step in deployment.steps]
    return [bare_table("Steps", [head.capitalize() for head in _HEADS], rows, numbers=("Time",))]


def step_line(step: StepOutcome) -> str:
    """Return one step on one line, while others still run."""
    return "  ".join(part for part in (f"{step.name:8}", *_texts(step)[1:]) if part)


def _texts(step: StepOutcome) -> list[str]:
    what = step.summary or step.why
    if step.failure is not None:
        what = f"{step.failure.what} {step.failure.found}".strip()
    time = f"{step.seconds:.1f} s" if step.state in ("done", "skipped", "failed") else ""
    return [step.name, step.state, time, one_line(what)]


def deployment_page(deployment: Deployment, *, about: About) -> str:
    """Return the page of a run; results are read from the folders of the steps.

    A result that cannot be read any more has no section; the table of steps is always there.
    """
    pairs: Pairs = [
        ("Pipeline", code(str(deployment.path))),
        ("Folder", code(str(deployment.folder))),
        ("Time", f"{deployment.seconds:.1f} s"),
        *about.pairs(),
    ]
    failures = [
        problem_box(step.failure.what, step.failure.found, step.failure.fix, [("Step", step.name)])
        for step in deployment.steps
        if step.failure is not None
    ]
    rows = [_texts(step) for step in deployment.steps]
    head = summary(
        [_deployment_verdict(deployment)],
        dataclasses.replace(about, problem=None),
        *failures,
        plain_table("Steps", [one.capitalize() for one in _HEADS], rows),
        facts(pairs, "facts wide"),
        count=len(rows),
    )
    sections = [section for step in deployment.steps for section in _sections(step)]
    return document("Deployment", deployment.name, [head, *sections])


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
            elif kind == "verification":
                a, _, b = name.removesuffix(".json").partition("-")
                section = verification_section(from_json(text, Verification), a, b)
                title = f"{a} and {b}"
                yield dataclasses.replace(section, id=f"verification-{a}-{b}", title=title)
            elif kind == "engine_record":
                yield engine_section(from_json(text, EngineRecord))
            elif kind == "benchmark":
                yield benchmark_section(from_json(text, Benchmark))
            elif kind == "packaged":
                yield package_section(from_json(text, Packaged))
