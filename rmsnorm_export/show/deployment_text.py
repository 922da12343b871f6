"""A deployment as text: a verdict, then a line for each step."""

from __future__ import annotations

from rmsnorm_export.pipeline.result import Deployment, StepOutcome
from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.report_text import Line, table

_STYLES = {"done": "green", "skipped": "", "failed": "bold red", "not run": "yellow"}


def deployment_lines(deployment: Deployment, *, verbose: int = 0) -> list[Line]:
    """The lines.

    Args:
        deployment: of ``run_pipeline``.
        verbose: below 0 the verdict alone, above 0 with the reasons and files of every step.
    """
    lines: list[Line] = [verdict(deployment)]
    if verbose < 0:
        return lines
    lines += [f"  {printable(str(deployment.path))} -> {printable(str(deployment.folder))}", ""]
    last = "why" if deployment.dry_run else "what came out"
    rows = [["step", "state", "time", last]]
    rows += [_row(step, dry_run=deployment.dry_run) for step in deployment.steps]
    texts = table(rows, right=(2,))
    lines.append((f"  {texts[0]}", "bold"))
    for step, text in zip(deployment.steps, texts[1:], strict=True):
        style = "" if deployment.dry_run else _STYLES[step.state]
        lines.append((f"  {text}", style))
        if verbose > 0:
            lines += [f"      ran because  {one_line(step.why)}"] if step.state == "done" else []
            lines += [f"      file   {printable(name)}" for name in step.outputs]
            notes = step.facts.get("notes", ())
            lines += [f"      note   {one_line(str(note))}" for note in notes]
    return lines


def verdict(deployment: Deployment) -> Line:
    """The line that says it all."""
    name, steps = printable(deployment.name), deployment.steps
    if deployment.dry_run:
        runs = sum(step.plan == "run" for step in steps)
        may = sum(step.plan == "maybe" for step in steps)
        also = f", {may} more may have to" if may else ""
        return f"{name}: {runs} of {len(steps)} steps would run{also}; nothing was changed"
    done = sum(step.state == "done" for step in steps)
    skipped = sum(step.state == "skipped" for step in steps)
    counts = f"{done} done, {skipped} up to date, {deployment.seconds:.1f} s"
    if deployment.failed is not None:
        return (f"{name}: {deployment.failed.name} FAILED ({counts})", "bold red")
    whole = done + skipped == len(steps)
    said = "deployed" if whole else "as far as asked"
    return (f"{name}: {said} ({counts})", "bold green")


def step_line(step: StepOutcome) -> str:
    """One step on one line, while others still run."""
    return "  ".join(part for part in (f"{step.name:8}", *_row(step)[1:]) if part)


def _row(step: StepOutcome, *, dry_run: bool = False) -> list[str]:
    if dry_run:
        states = {"run": "would run", "skip": "up to date", "maybe": "may run"}
        return [step.name, states[step.plan], "", one_line(step.why)]
    what = step.summary
    if step.failure is not None:
        what = f"{one_line(step.failure.what)} {one_line(step.failure.found)}".strip()
    elif step.state == "not run":
        what = step.why
    time = "" if step.state == "not run" else f"{step.seconds:.1f} s"
    return [step.name, step.state, time, one_line(what)]
