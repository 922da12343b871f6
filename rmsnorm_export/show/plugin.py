"""What the ``plugin`` commands found: builds, libraries, checks, and lines that load the plugin."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.show.text import Line, headline, note_lines, table
from rmsnorm_export.tensorrt.plugin import (
    Built,
    CheckResult,
    CommandLines,
    Entry,
    LibraryInfo,
    Plugins,
    RuntimeCheck,
)

_TRIAL_STYLES = {"passed": "", "missing": "dim", "incompatible": "yellow", "broken": "yellow"}
_SHORT = 8
"""Names that are listed without -v."""


def _made_for(built: Built) -> str:
    if built.runtime == "onnxruntime":
        return f"ONNX Runtime on the CPU, {', '.join(built.architectures)}"
    names = {"tensorrt": f"TensorRT {built.tensorrt}", "torch": "PyTorch"}
    runtime = names.get(built.runtime, "ONNX Runtime")
    return f"{runtime}, CUDA {built.cuda}, sm_{', sm_'.join(built.architectures)}"


def built_lines(built: Built, *, verbose: int = 0) -> list[Line]:
    """Outcome of ``build``."""
    how = "was built before" if built.cached else f"built in {built.seconds:.0f} s"
    lines: list[Line] = [headline((f"plugin {how}: {_made_for(built)}", "good"))]
    if verbose < 0:
        return lines
    lines += [f"  {printable(built.compiler)}", *_built_libraries(built)]
    lines += [f"  wrote {printable(str(path))}" for path in built.copies]
    return lines + note_lines(built.notes)


def _built_libraries(built: Built) -> list[str]:
    rows = [[library.style, printable(str(library.path))] for library in built.libraries]
    return table(rows)


def plugins_lines(plugins: Plugins, *, verbose: int = 0) -> list[Line]:
    """Outcome of ``list``."""
    whole = [entry for entry in plugins.entries if entry.built is not None]
    lines = [headline((f"{len(whole)} built in {printable(str(plugins.cache))}", ""))]
    if verbose < 0:
        return lines
    for entry in plugins.entries:
        lines += _entry_lines(entry, verbose)
    if not whole:
        lines.append("  rmsnorm-export plugin build")
    for info in plugins.libraries:
        lines += ["", *_library_lines(info, verbose)]
    return lines


def _entry_lines(entry: Entry, verbose: int) -> list[Line]:
    name, built = printable(entry.folder.name), entry.built
    if built is None:
        return [(f"  {name}: damaged: {one_line(entry.problem)}", "bold red")]
    when = built.created.split(".")[0].replace("T", " ")
    libraries = _built_libraries(built) if verbose > 0 else []
    return [f"  {name}", f"      {_made_for(built)}, {when} UTC", *libraries]


def _library_lines(info: LibraryInfo, verbose: int) -> list[Line]:
    lines: list[Line] = [(printable(str(info.path)), "bold")]
    if info.problem:
        lines.append((f"  {one_line(info.problem)}", "bold red"))
    if info.style:
        lines.append(f"  for {info.machine}, to be loaded with {info.style}")
    if info.creators:
        names = [creator.name for creator in info.creators]
        shown = names if verbose > 0 else names[:_SHORT]
        more = f" and {len(names) - len(shown)} more (-v)" if len(shown) < len(names) else ""
        spaces = printable(", ".join(sorted({f"{c.namespace} {c.version}" for c in info.creators})))
        lines.append(f"  namespace {spaces}: {printable(', '.join(shown))}{more}")
    elif info.style is not None and not info.problem:
        lines.append("  has no self-test: rmsnorm-export plugin check asks a TensorRT runtime")
    if verbose > 0 and info.needed:
        lines.append(f"  linked against {printable(', '.join(info.needed))}")
    return lines


def plugin_check_lines(result: CheckResult, *, verbose: int = 0) -> list[Line]:
    """Outcome of ``check``."""
    ran = [trial for trial in result.runtimes if trial.status not in ("missing", "broken")]
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
        lines += _trial_checks(trial, verbose)
    return lines + note_lines(result.notes)


def _trial_texts(trial: RuntimeCheck) -> list[str]:
    name = "without TensorRT" if trial.runtime == "none" else trial.runtime
    passed = sum(check.passed for check in trial.checks)
    checks = f"{passed} of {plural(len(trial.checks), 'check')}" if trial.checks else ""
    return [name, trial.version or "-", printable(trial.library), trial.status, checks]


def _trial_checks(trial: RuntimeCheck, verbose: int) -> Sequence[Line]:
    """Every check with -v, else those that failed, as far as they are few."""
    explained = trial.status == "incompatible"
    failed = [check for check in trial.checks if not check.passed and not explained]
    shown = trial.checks if verbose > 0 else failed[:_SHORT]
    lines = [
        f"      {'ok    ' if check.passed else 'FAILED'}  {one_line(check.name)}"
        f"{': ' if check.detail else ''}{one_line(check.detail)}"
        for check in shown
    ]
    left = len(failed) - len(shown)
    return [*lines, f"      {left} more (-v)"] if verbose <= 0 and left else lines


def check_failure(result: CheckResult) -> tuple[str, str, str]:
    """What, found and fix of the error for a plugin that does not work."""
    fine = ("passed", "missing", "broken", "incompatible")
    bad = [trial for trial in result.runtimes if trial.status not in fine]
    if not bad:
        bad = [t for t in result.runtimes if t.status == "incompatible"]
        fix = "rmsnorm-export plugin build --tensorrt DIR with the headers of the installed version"
        if not bad:  # nothing could try it
            bad = list(result.runtimes)
            fix = "pip install tensorrt_lean, whose registry needs no GPU, and check it again"
    else:
        fix = "run it again with -v for every check; rmsnorm-export plugin build --force"
    for info in result.libraries:
        fix = info.fix or fix
    first = bad[0]
    where = "without TensorRT" if first.runtime == "none" else f"in {first.runtime}"
    found = f"{first.library} {where}: {first.status}: {first.detail}"
    return "The plugin does not work.", found, fix


def loader_lines(loaders: CommandLines, *, verbose: int = 0, only: bool = False) -> Sequence[Line]:
    """Outcome of ``lines``; with ``only`` nothing but the line, for a script."""
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
