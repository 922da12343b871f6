"""What ``doctor`` finds: packages, tools, the plugin and the self test."""

from __future__ import annotations

from rmsnorm_export.diagnosis import Component, Diagnosis
from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.text import Line, headline, table
from rmsnorm_export.tensorrt.plugin.result import Tool

_STATUS_STYLES = {"ok": "", "missing": "dim", "broken": "bold red"}


def diagnosis_lines(diagnosis: Diagnosis, *, verbose: int = 0) -> list[Line]:
    """The lines of a diagnosis; with ``verbose`` below 0 the verdict alone."""
    ready = sum(c.status == "ok" for c in diagnosis.components)
    verdict, kind = ("works", "good") if diagnosis.works else ("does NOT work", "bad")
    total = len(diagnosis.components)
    text = f"rmsnorm-export {diagnosis.version}: the core {verdict}; {ready} of {total} packages"
    lines: list[Line] = [headline((text, kind))]
    if verbose < 0:
        return lines
    lines.append(f"  Python {one_line(diagnosis.python)}")
    lines.append(f"  {one_line(diagnosis.platform)}")
    lines += [f"  GPU {one_line(gpu)}" for gpu in diagnosis.gpus or ("none found by nvidia-smi",)]
    lines += ["", ("packages", "bold"), *_component_lines(diagnosis.components)]
    lines += ["", ("plugin", "bold"), *_tool_lines(diagnosis.build_tools)]
    for built in diagnosis.plugins:
        places = {str(library.path.parent) for library in built.libraries}
        lines.append(f"  built: {built.runtime}  {printable(', '.join(places))}")
    if not diagnosis.plugins:
        lines.append(("  built: none", "dim"))
    if diagnosis.self_tests:
        lines += ["", ("self test", "bold")]
    tests = [
        [test.name, "ok" if test.passed else "FAILED", one_line(test.detail)]
        for test in diagnosis.self_tests
    ]
    for test, row in zip(diagnosis.self_tests, table(tests), strict=True):
        lines.append((row, "" if test.passed else "bold red"))
    return lines


def _component_lines(components: tuple[Component, ...]) -> list[Line]:
    lines: list[Line] = []
    rows = [
        [c.name, c.version or "-", c.status, "needed" if c.required else "optional"]
        for c in components
    ]
    for c, row in zip(components, table(rows), strict=True):
        texts = [row, f"      {one_line(c.detail)}" if c.detail else ""]
        if c.status != "ok":
            texts.append(f"      for {c.enables}: {c.install}")
        lines += [(text, _STATUS_STYLES[c.status]) for text in texts if text]
    return lines


def _tool_lines(tools: tuple[Tool, ...]) -> list[Line]:
    """What building the TensorRT plugin needs."""
    lines: list[Line] = []
    for tool, row in zip(tools, table([[t.name, printable(t.path)] for t in tools]), strict=True):
        style = "" if tool.path else _STATUS_STYLES["missing"]
        lines.append((row, style))
        if not tool.path:
            lines.append((f"      for plugin build: {tool.install}", style))
    return lines
