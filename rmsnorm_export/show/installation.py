"""The findings of ``doctor``, and the outcome of ``plugin build``."""

from __future__ import annotations

from rmsnorm_export.diagnosis import Diagnosis
from rmsnorm_export.printable import one_line
from rmsnorm_export.show.text import Block, Table
from rmsnorm_export.system.packages import Component
from rmsnorm_export.tensorrt.plugin.libraries import Built

_STATUS_STYLES = {"missing": "dim", "broken": "bad"}


def diagnosis_blocks(diagnosis: Diagnosis, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a diagnosis; with ``verbose`` below 0 the verdict alone."""
    ready = sum(c.status == "ok" for c in diagnosis.components)
    verdict, kind = ("works", "good") if diagnosis.works else ("does NOT work", "bad")
    total = len(diagnosis.components)
    text = f"rmsnorm-export {diagnosis.version}: the core {verdict}; {ready} of {total} packages"
    lines: list[Block] = [(text, kind)]
    if verbose < 0:
        return lines
    lines.append(f"  Python {one_line(diagnosis.python)}")
    lines.append(f"  {one_line(diagnosis.platform)}")
    lines += [f"  GPU {one_line(gpu)}" for gpu in diagnosis.gpus or ("none found by nvidia-smi",)]
    tables = {
        "packages": diagnosis.components,
        "build tools of the plugin": diagnosis.build_tools,
        "self test": diagnosis.self_tests,
    }
    heads = ("name", "version", "status", "", "details")
    for title, listed in tables.items():
        styles = [_STATUS_STYLES.get(component.status, "") for component in listed]
        lines.append(Table(title, heads, [*map(_component_texts, listed)], styles=styles))
    builds: list[Block] = [
        f"  built: {built.runtime}  {library.path}"
        for built in diagnosis.plugins
        for library in built.libraries
    ]
    return [*lines, "", *(builds or [("  built: none that can be loaded", "dim")])]


def _component_texts(component: Component) -> list[str]:
    details = [component.detail]
    if component.status != "ok" and component.install:
        details.append(f"for {component.enables}: {component.install}")
    return [
        component.name,
        component.version or "-",
        component.status,
        "needed" if component.required else "optional",
        one_line("; ".join(filter(None, details))),
    ]


def built_blocks(built: Built, *, verbose: int = 0) -> list[Block]:
    """Return the lines of ``build``."""
    lines: list[Block] = [(f"built for {built.runtime} in {built.seconds:.0f} s", "good")]
    if verbose < 0:
        return lines
    libraries = [(library.style, str(library.path)) for library in built.libraries]
    return [*lines, Table("libraries", ("kind", "path"), libraries)]
