"""A deployment as one page: the steps, then what each of them found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.errors import InputError
from rmsnorm_export.pipeline.result import Deployment, StepOutcome
from rmsnorm_export.pipeline.steps import bench, build, package, verify
from rmsnorm_export.pipeline.steps.base import REPORT
from rmsnorm_export.printable import one_line
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.show.benchmark_page import benchmark_section
from rmsnorm_export.show.deployment_text import verdict
from rmsnorm_export.show.engine_page import engine_section
from rmsnorm_export.show.page import Section, page, verification_section
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    code,
    facts,
    join,
    tag,
)
from rmsnorm_export.show.page.plain_table import plain_table
from rmsnorm_export.show.page.refusals import refusal_sections
from rmsnorm_export.show.page.rewrites import badge, rewrites, rewrites_section
from rmsnorm_export.show.page.sites import sites_section
from rmsnorm_export.tensorrt.engine.result import EngineRecord

T = TypeVar("T")

_KINDS = {"done": "good", "skipped": "", "failed": "bad", "not run": "warn"}


def deployment_page(deployment: Deployment) -> str:
    """The whole document; results are read from the folders of the steps.

    A result that cannot be read any more has no section; the table of steps is always there.
    """
    sections = [_summary(deployment)]
    steps = {step.name: step for step in deployment.steps if step.facts}
    proved = steps.get("prove") or steps.get("optimize")
    if proved is not None:
        sections += _report(proved)
    if "build" in steps:
        sections += _engine(steps["build"])
    if "verify" in steps:
        sections += _comparisons(steps["verify"])
    if "bench" in steps:
        with _readable():
            path = steps["bench"].folder / bench.RECORD
            sections.append(benchmark_section(_read(path, Benchmark)))
    if "package" in steps:
        sections += _package(steps["package"])
    return page("Deployment", deployment.name, sections)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    with contextlib.suppress(OSError, ValueError, InputError):
        yield


def _read(path: Path, cls: type[T]) -> T:
    return from_json(path.read_text("utf-8"), cls)


def _summary(deployment: Deployment) -> Section:
    line = verdict(deployment)
    text = line if isinstance(line, str) else line[0]
    kind = "" if deployment.dry_run else "good" if deployment.passed else "bad"
    pairs: list[tuple[str, Content]] = [
        ("Pipeline", code(str(deployment.path))),
        ("Folder", code(str(deployment.folder))),
        ("Time", f"{deployment.seconds:.1f} s"),
        ("Date", deployment.date),
        ("Made by", deployment.tool),
    ]
    heads = ("Step", "State", "Seconds", "What came out", "Why")
    rows = [
        tag(
            "tr",
            tag("th", step.name, scope="row"),
            tag("td", badge(step.state, _KINDS[step.state]) if _KINDS[step.state] else step.state),
            tag("td", f"{step.seconds:.1f}", class_="num"),
            tag("td", one_line(step.summary)),
            tag("td", one_line(step.why)),
        )
        for step in deployment.steps
    ]
    body = [
        tag("p", tag("strong", text), class_=f"verdict {kind}".strip()),
        *(_problem(step) for step in deployment.steps if step.failure is not None),
        plain_table("Steps", heads, rows, numbers=("Seconds",)),
        facts(pairs, "facts wide"),
        *(
            tag("p", f"Note on {step.name}: {one_line(str(note))}", class_="note")
            for step in deployment.steps
            for note in step.facts.get("notes", ())
        ),
    ]
    return Section("summary", "Summary", join(body), len(deployment.steps))


def _problem(step: StepOutcome) -> Markup:
    assert step.failure is not None
    failure = step.failure
    lines: list[tuple[str, Content]] = [
        ("Step", step.name),
        ("Error", one_line(failure.what)),
        ("Found", one_line(failure.found) or None),
        ("Fix", one_line(failure.fix) or None),
    ]
    return tag("div", facts(lines), class_="problem", role="note")


def _report(step: StepOutcome) -> Iterator[Section]:
    """What was rewritten, with the proofs where there are some."""
    with _readable():
        report = _read(step.folder / REPORT, Report)
        found = rewrites(report)
        parts = (rewrites_section(report, found), sites_section(report, found))
        yield from (part for part in parts if part is not None)
        yield from refusal_sections(report, planned=False)


def _engine(step: StepOutcome) -> Iterator[Section]:
    with _readable():
        yield engine_section(_read(step.folder / str(step.facts[build.SIDECAR][0]), EngineRecord))


def _comparisons(step: StepOutcome) -> Iterator[Section]:
    entries: list[dict[str, Any]] = step.facts[verify.COMPARISONS]
    for entry in entries:
        with _readable():
            a, b = str(entry["a"]), str(entry["b"])
            outcome = _read(step.folder / str(entry["file"]), Verification)
            section = verification_section(outcome, a, b)
            yield dataclasses.replace(section, id=f"verification-{a}-{b}", title=f"{a} and {b}")


def _package(step: StepOutcome) -> Iterator[Section]:
    with _readable():
        packaged = _read(step.folder / package.PACKAGED, Packaged)
        record = packaged.record
        tensors = [
            tag("li", code(f"{way} {t.name}: {t.dtype} {list(t.shape)}"))
            for way, served in (("takes", record.inputs), ("answers", record.outputs))
            for t in served
        ]
        pairs: list[tuple[str, Content]] = [
            ("Place", code(str(packaged.path))),
            ("Version", str(packaged.version)),
            ("Backend of Triton", record.backend),
            ("Largest batch", str(record.max_batch) if record.max_batch else "no batches"),
            ("Requests", tag("ul", *tensors, class_="names")),
            ("Server", code(packaged.load) if packaged.load else None),
        ]
        checks = [
            tag(
                "tr",
                tag("th", check.name, scope="row"),
                tag("td", badge(check.outcome, "good" if check.outcome == "passed" else "warn")),
                tag("td", one_line(check.detail)),
            )
            for check in packaged.checks
        ]
        files = [
            tag(
                "tr",
                tag("th", code(file.path), scope="row"),
                tag("td", f"{file.bytes:,}", class_="num"),
                tag("td", code(file.sha256)),
            )
            for file in (*record.files, *packaged.current.files)
        ]
        body = join(
            [
                facts(pairs, "facts wide"),
                tag("h3", "Checks"),
                plain_table("Checks", ("Check", "Outcome", "How"), checks),
                tag("h3", "Files"),
                plain_table("Files", ("File", "Bytes", "SHA-256"), files, numbers=("Bytes",)),
            ]
        )
        yield Section("package", "Package", body, len(checks))
