"""The outcome of the ``plugin`` commands: builds, checks, and lines that load the plugin."""

from __future__ import annotations

from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.show.text import Block, Table
from rmsnorm_export.tensorrt.plugin.result import (
    Built,
    Check,
    CheckResult,
    CommandLines,
    RuntimeCheck,
)

_TRIAL_STYLES = {"passed": "", "missing": "dim"}
_SHORT = 8
"""Failed checks of a runtime that are listed without -v."""


def built_blocks(built: Built, *, verbose: int = 0) -> list[Block]:
    """Return the lines of ``build``."""
    versions = {"TensorRT": built.tensorrt, "CUDA": built.cuda, "for": built.architectures}
    facts = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    lines: list[Block] = [
        (f"built for {built.runtime} in {built.seconds:.0f} s: {facts}", "good"),
    ]
    if verbose < 0:
        return lines
    libraries = [(library.style, str(library.path)) for library in built.libraries]
    lines += [f"  {built.compiler}", Table("libraries", ("kind", "path"), libraries)]
    return lines + [f"  wrote {path}" for path in built.copies]


def check_result_blocks(result: CheckResult, *, verbose: int = 0) -> list[Block]:
    """Return the lines of ``check``."""
    ran = [trial for trial in result.runtimes if trial.status != "missing"]
    good = sum(trial.status == "passed" for trial in ran)
    verdict, kind = ("works", "good") if result.passed else ("does NOT work", "bad")
    lines: list[Block] = [
        (f"the plugin {verdict}: {good} of {plural(len(ran), 'trial')} passed", kind)
    ]
    if verbose < 0:
        return lines
    heads = ("runtime", "version", "library", "status", "checks", "details")
    styles = [_TRIAL_STYLES.get(trial.status, "bad") for trial in result.runtimes]
    lines.append(Table("", heads, [*map(_trial_texts, result.runtimes)], styles=styles))
    checks = [
        (trial.runtime, "ok" if check.passed else "FAILED", check.name, one_line(check.detail))
        for trial in result.runtimes
        for check in (trial.checks if verbose > 0 else _failed(trial))
    ]
    lines.append(Table("checks", ("runtime", "status", "check", "details"), checks))
    return lines


def _failed(trial: RuntimeCheck) -> list[Check]:
    return [check for check in trial.checks if not check.passed][:_SHORT]


def _trial_texts(trial: RuntimeCheck) -> list[str]:
    passed = sum(check.passed for check in trial.checks)
    checks = f"{passed} of {plural(len(trial.checks), 'check')}" if trial.checks else ""
    cells = [trial.runtime, trial.version or "-", trial.library, trial.status, checks]
    return [*cells, one_line(trial.detail)]


def command_lines_blocks(
    result: CommandLines, *, verbose: int = 0, only: bool = False
) -> list[Block]:
    """Return the lines of ``lines``; with ``only`` nothing but the line, for a script."""
    lines: list[Block] = []
    for line in result.lines:
        if only or verbose < 0:
            lines.append(line.text)
            continue
        lines += [*([""] if lines else []), (f"# {line.program}", "bold"), line.text]
        if line.note:
            lines.append((f"#   {line.note}", "dim"))
    return lines
