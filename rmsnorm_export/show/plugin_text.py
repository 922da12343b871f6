"""What the ``plugin`` commands print."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.report_text import Line, table
from rmsnorm_export.tensorrt.plugin import (
    Built,
    CheckResult,
    CommandLines,
    Entry,
    LibraryInfo,
    Plugins,
    RuntimeCheck,
)

_STYLES = {"passed": "", "missing": "dim", "incompatible": "yellow", "broken": "yellow"}
_SHORT = 8
"""Names that are listed without -v."""


def built_lines(built: Built, verbosity: int) -> list[Line]:
    """Outcome of ``build``."""
    did = "was built before" if built.cached else f"built in {built.seconds:.0f} s"
    head = f"plugin {did}: TensorRT {built.tensorrt}, CUDA {built.cuda}, sm_"
    lines: list[Line] = [(head + ", sm_".join(built.architectures), "bold green")]
    if verbosity < 0:
        return lines
    lines.append(f"  {printable(built.compiler)}")
    lines += _libraries(built)
    lines += [f"  wrote {printable(str(path))}" for path in built.copies]
    return lines + [f"note: {one_line(note)}" for note in built.notes]


def _libraries(built: Built) -> list[Line]:
    rows = [[f"  {library.style}", printable(str(library.path))] for library in built.libraries]
    return [*table(rows)]


def plugins_lines(found: Plugins, verbosity: int) -> list[Line]:
    """Outcome of ``list``."""
    whole = [entry for entry in found.entries if entry.built is not None]
    head = f"{len(whole)} built in {printable(str(found.cache))}"
    lines: list[Line] = [(head, "bold")]
    if verbosity < 0:
        return lines
    for entry in found.entries:
        lines += _entry(entry, verbosity)
    if not whole:
        lines.append("  rmsnorm-export plugin build")
    for info in found.libraries:
        lines += ["", *_library(info, verbosity)]
    return lines


def _entry(entry: Entry, verbosity: int) -> list[Line]:
    name = printable(entry.folder.name)
    if entry.built is None:
        return [(f"  {name}: damaged: {one_line(entry.problem)}", "bold red")]
    built = entry.built
    when = built.created.split(".")[0].replace("T", " ")
    about = f"TensorRT {built.tensorrt}, CUDA {built.cuda}, sm_{', sm_'.join(built.architectures)}"
    lines: list[Line] = [f"  {name}", f"      {about}, {when} UTC"]
    return lines + (_libraries(built) if verbosity > 0 else [])


def _library(info: LibraryInfo, verbosity: int) -> list[Line]:
    lines: list[Line] = [(printable(str(info.path)), "bold")]
    if info.problem:
        lines.append((f"  {one_line(info.problem)}", "bold red"))
    if info.style:
        lines.append(f"  for {info.machine}, to be loaded with {info.style}")
    if info.creators:
        names = [creator.name for creator in info.creators]
        namespaces = sorted({f"{c.namespace} {c.version}" for c in info.creators})
        lines.append(f"  namespace {printable(', '.join(namespaces))}: {_some(names, verbosity)}")
    elif info.style == "dlopen":
        lines.append("  registers its plugins itself: rmsnorm-export plugin check lists them")
    if verbosity > 0 and info.needed:
        lines.append(f"  linked against {printable(', '.join(info.needed))}")
    return lines


def _some(names: Sequence[str], verbosity: int) -> str:
    shown = names if verbosity > 0 else names[:_SHORT]
    more = f" and {len(names) - len(shown)} more (-v)" if len(shown) < len(names) else ""
    return printable(", ".join(shown)) + more


def check_lines(result: CheckResult, verbosity: int) -> list[Line]:
    """Outcome of ``check``."""
    ran = [trial for trial in result.runtimes if trial.status not in ("missing", "broken")]
    good = sum(trial.status == "passed" for trial in ran)
    verdict = "the plugin works" if result.passed else "the plugin does NOT work"
    style = "bold green" if result.passed else "bold red"
    lines: list[Line] = [(f"{verdict}: {good} of {len(ran)} trials passed", style)]
    if verbosity < 0:
        return lines
    rows = [_row(trial) for trial in result.runtimes]
    for trial, row in zip(result.runtimes, table(rows), strict=True):
        lines.append((f"  {row}", _STYLES.get(trial.status, "bold red")))
        if trial.detail:
            detail = one_line(trial.detail)
            lines.append((f"      {detail}", _STYLES.get(trial.status, "bold red")))
        lines += _checks(trial, verbosity)
    return lines + [f"note: {one_line(note)}" for note in result.notes]


def _checks(trial: RuntimeCheck, verbosity: int) -> list[Line]:
    """Every check with -v, else those that failed, as far as they are few."""
    explained = trial.status == "incompatible"
    failed = [check for check in trial.checks if not check.passed and not explained]
    shown = trial.checks if verbosity > 0 else failed[:_SHORT]
    lines: list[Line] = [
        f"      {'ok    ' if check.passed else 'FAILED'}  {one_line(check.name)}"
        f"{': ' if check.detail else ''}{one_line(check.detail)}"
        for check in shown
    ]
    left = len(failed) - len(shown)
    return [*lines, f"      {left} more (-v)"] if verbosity <= 0 and left else lines


def _row(trial: RuntimeCheck) -> list[str]:
    name = "without TensorRT" if trial.runtime == "none" else trial.runtime
    passed = sum(check.passed for check in trial.checks)
    checks = f"{passed} of {len(trial.checks)} checks" if trial.checks else ""
    library = printable(trial.library)
    return [name, trial.version or "-", library, trial.status, checks]


def check_failure(result: CheckResult) -> tuple[str, str, str]:
    """What, found and fix of the error for a plugin that does not work."""
    fine = ("passed", "missing", "broken", "incompatible")
    bad = [trial for trial in result.runtimes if trial.status not in fine]
    if not bad:
        bad = [t for t in result.runtimes if t.status == "incompatible"]
        fix = "rmsnorm-export plugin build --tensorrt DIR with the headers of the installed version"
    else:
        fix = "run it again with -v for every check; rmsnorm-export plugin build --force"
    for info in result.libraries:
        fix = info.fix or fix
    first = bad[0]
    where = "without TensorRT" if first.runtime == "none" else f"in {first.runtime}"
    found = f"{first.library} {where}: {first.status}: {first.detail}"
    return "The plugin does not work.", found, fix


def loader_lines(found: CommandLines, verbosity: int, *, only: bool) -> list[Line]:
    """Outcome of ``lines``; with ``only`` nothing but the line, for a script."""
    if only:
        return [line.text for line in found.lines]
    lines: list[Line] = []
    for line in found.lines:
        if verbosity >= 0:
            lines += ([""] if lines else []) + [(f"# {line.program}", "bold")]
        lines.append(line.text)
        if line.note and verbosity >= 0:
            lines.append((f"#   {line.note}", "dim"))
    return lines
