"""The outcome of the ``plugin`` commands: builds and checks."""

from __future__ import annotations

from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.show.text import Block, Table
from rmsnorm_export.tensorrt.plugin.result import Built, CheckResult, RuntimeCheck

_TRIAL_STYLES = {"passed": "", "missing": "dim"}


def built_blocks(built: Built, *, verbose: int = 0) -> list[Block]:
    """Return the lines of ``build``."""
    lines: list[Block] = [(f"built for {built.runtime} in {built.seconds:.0f} s", "good")]
    if verbose < 0:
        return lines
    libraries = [(library.style, str(library.path)) for library in built.libraries]
    return [*lines, Table("libraries", ("kind", "path"), libraries)]


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
    heads = ("runtime", "version", "library", "status", "details")
    styles = [_TRIAL_STYLES.get(trial.status, "bad") for trial in result.runtimes]
    return [*lines, Table("", heads, [*map(_trial_texts, result.runtimes)], styles=styles)]


def _trial_texts(trial: RuntimeCheck) -> list[str]:
    texts = (trial.runtime, trial.version or "-", trial.library, trial.status, trial.detail)
    return [one_line(text) for text in texts]
