"""What the ``plugin`` commands found: builds, checks, and lines that load the plugin."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.show.text import Line, headline, table
from rmsnorm_export.tensorrt.plugin.result import Built, CheckResult, CommandLines, RuntimeCheck

_TRIAL_STYLES = {"passed": "", "missing": "dim"}
_SHORT = 8
"""Checks that are listed without -v."""


def built_lines(built: Built, *, verbose: int = 0) -> list[Line]:
    """Return the lines of ``build``."""
    versions = {"TensorRT": built.tensorrt, "CUDA": built.cuda, "for": built.architectures}
    facts = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    text = f"built for {built.runtime} in {built.seconds:.0f} s: {facts}"
    lines: list[Line] = [headline((text, "good"))]
    if verbose < 0:
        return lines
    rows = [[library.style, printable(str(library.path))] for library in built.libraries]
    lines += [f"  {printable(built.compiler)}", *table(rows)]
    return lines + [f"  wrote {printable(str(path))}" for path in built.copies]


def plugin_check_lines(result: CheckResult, *, verbose: int = 0) -> list[Line]:
    """Return the lines of ``check``."""
    ran = [trial for trial in result.runtimes if trial.status != "missing"]
    good = sum(trial.status == "passed" for trial in ran)
    verdict, kind = ("works", "good") if result.passed else ("does NOT work", "bad")
    text = f"the plugin {verdict}: {good} of {plural(len(ran), 'trial')} passed"
    lines: list[Line] = [headline((text, kind))]
    if verbose < 0:
        return lines
    rows = table([_trial_texts(trial) for trial in result.runtimes])
    for trial, row in zip(result.runtimes, rows, strict=True):
        style = _TRIAL_STYLES.get(trial.status, "bold red")
        lines.append((row, style))
        if trial.detail:
            lines.append((f"      {one_line(trial.detail)}", style))
        failed = [check for check in trial.checks if not check.passed][:_SHORT]
        lines += [
            f"      {'ok    ' if check.passed else 'FAILED'}  {one_line(check.name)}"
            f"{': ' if check.detail else ''}{one_line(check.detail)}"
            for check in (trial.checks if verbose > 0 else failed)
        ]
    return lines


def _trial_texts(trial: RuntimeCheck) -> list[str]:
    passed = sum(check.passed for check in trial.checks)
    checks = f"{passed} of {plural(len(trial.checks), 'check')}" if trial.checks else ""
    return [trial.runtime, trial.version or "-", printable(trial.library), trial.status, checks]


def loader_lines(loaders: CommandLines, *, verbose: int = 0, only: bool = False) -> Sequence[Line]:
    """Return the lines of ``lines``; with ``only`` nothing but the line, for a script."""
    if only:
        return [line.text for line in loaders.lines]
    lines: list[Line] = []
    for line in loaders.lines:
        if verbose >= 0:
            lines += ([""] if lines else []) + [(f"# {line.program}", "bold")]
        lines.append(line.text)
        if line.note and verbose >= 0:
            lines.append((f"#   {line.note}", "dim"))
    return lines
