"""``doctor``: what is installed, what is not and would be of use, and whether the core works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State

if TYPE_CHECKING:
    from rmsnorm_export.cli.diagnosis import Diagnosis
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.show.report_text import Line

_STYLES = {"ok": "", "missing": "dim", "broken": "bold red"}


@define("doctor", short_help="Check this installation.")
def command(state: State) -> None:
    """Check this installation: packages, GPUs, the TensorRT plugin, and a model for every target.

    \b
    Exit code 0 when the core works, whatever else is missing; 6 when a package
    that it needs is missing or broken; 4 when the self test fails.
    """
    from rmsnorm_export.cli.diagnosis import diagnose

    with console.progress(state, "Importing packages, running the self test"):
        diagnosis = diagnose()
    console.finish(
        state, diagnosis, lambda: _lines(diagnosis, state.verbosity), _broken_core(diagnosis)
    )


def _broken_core(diagnosis: Diagnosis) -> Failure | None:
    """The error that the exit code stands for; None when the core works."""
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.errors import ExitCode

    if diagnosis.works:
        return None
    bad = [c for c in diagnosis.components if c.required and c.status != "ok"]
    if bad:
        return Failure(
            "A package that rmsnorm-export needs does not work.",
            ", ".join(f"{c.name} is {c.status}" for c in bad),
            " && ".join(dict.fromkeys(c.install for c in bad)),
            ExitCode.BACKEND,
        )
    failed = [test for test in diagnosis.self_tests if not test.passed]
    return Failure(
        "The self test failed.",
        "; ".join(f"{test.name}: {test.detail}" for test in failed),
        "reinstall with pip install --force-reinstall rmsnorm-export; if that does not help,"
        " report the output of rmsnorm-export doctor --format json",
        ExitCode.VERIFICATION,
    )


def _lines(diagnosis: Diagnosis, verbosity: int) -> list[Line]:
    """The diagnosis as text."""
    from rmsnorm_export.printable import one_line
    from rmsnorm_export.show.report_text import table

    ready = sum(c.status == "ok" for c in diagnosis.components)
    verdict = "the core works" if diagnosis.works else "the core does NOT work"
    style = "bold green" if diagnosis.works else "bold red"
    total = len(diagnosis.components)
    lines: list[Line] = [
        (f"rmsnorm-export {diagnosis.version}: {verdict}; {ready} of {total} packages", style)
    ]
    if verbosity < 0:
        return lines
    lines.append(f"  Python {one_line(diagnosis.python)}")
    lines.append(f"  {one_line(diagnosis.platform)}")
    lines += [f"  GPU {one_line(gpu)}" for gpu in diagnosis.gpus or ("none found by nvidia-smi",)]
    lines += ["", ("packages", "bold")]
    rows = [
        [f"  {c.name}", c.version or "-", c.status, "needed" if c.required else "optional"]
        for c in diagnosis.components
    ]
    for c, row in zip(diagnosis.components, table(rows), strict=True):
        lines.append((row, _STYLES[c.status]))
        if c.detail:
            lines.append((f"      {one_line(c.detail)}", _STYLES[c.status]))
        if c.status != "ok":
            lines.append((f"      for {c.enables}: {c.install}", _STYLES[c.status]))
    lines += ["", ("plugin", "bold"), *_plugin_lines(diagnosis)]
    if diagnosis.self_tests:
        lines += ["", ("self test", "bold")]
    tests = [
        [f"  {test.name}", "ok" if test.passed else "FAILED", one_line(test.detail)]
        for test in diagnosis.self_tests
    ]
    for test, row in zip(diagnosis.self_tests, table(tests), strict=True):
        lines.append((row, "" if test.passed else "bold red"))
    return lines


def _plugin_lines(diagnosis: Diagnosis) -> list[Line]:
    """What building the TensorRT plugin needs, and what is built."""
    from rmsnorm_export.printable import one_line, printable
    from rmsnorm_export.show.report_text import table

    lines: list[Line] = []
    rows = [
        [f"  {tool.name}", tool.version or "-", tool.status, printable(tool.path)]
        for tool in diagnosis.build_tools
    ]
    for tool, row in zip(diagnosis.build_tools, table(rows), strict=True):
        lines.append((row, _STYLES[tool.status]))
        if tool.status != "ok":
            lines.append((f"      {one_line(tool.detail)}", _STYLES[tool.status]))
            lines.append((f"      for plugin build: {tool.install}", _STYLES[tool.status]))
    for entry in diagnosis.plugins:
        state = f"damaged: {one_line(entry.problem)}" if entry.problem else "ok"
        style = _STYLES["broken" if entry.problem else "ok"]
        lines.append((f"  built: {printable(entry.folder.name)}  {state}", style))
    return lines if diagnosis.plugins else [*lines, ("  built: none", "dim")]
