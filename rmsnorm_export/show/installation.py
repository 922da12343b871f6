"""The findings of ``doctor``, and the outcome of ``plugin build``."""

from __future__ import annotations

from rmsnorm_export.diagnosis import Diagnosis
from rmsnorm_export.printable import one_line
from rmsnorm_export.show.text import Block, Table
from rmsnorm_export.tensorrt.plugin.libraries import Built


def diagnosis_blocks(diagnosis: Diagnosis, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a diagnosis; with ``verbose`` below 0 the verdict alone."""
    works = diagnosis.error is None
    verdict, kind = ("works", "good") if works else ("does NOT work", "bad")
    lines: list[Block] = [(f"rmsnorm-export {diagnosis.version}: the core {verdict}", kind)]
    if verbose < 0:
        return lines
    lines.append(f"  Python {one_line(diagnosis.python)}")
    lines.append(f"  {one_line(diagnosis.platform)}")
    lines += [f"  GPU {one_line(gpu)}" for gpu in diagnosis.gpus or ("none found by nvidia-smi",)]
    versions = [(name, one_line(text) or "-") for name, text in diagnosis.packages.items()]
    lines.append(Table("packages", ("name", "version"), versions))
    tests = [(name, one_line(why) or "works") for name, why in diagnosis.self_tests.items()]
    return [*lines, Table("self test", ("target", "outcome"), tests)]


def built_blocks(built: Built, *, verbose: int = 0) -> list[Block]:
    """Return the lines of ``build``."""
    lines: list[Block] = [(f"built for {built.runtime} in {built.seconds:.0f} s", "good")]
    if verbose < 0:
        return lines
    libraries = [(style, str(path)) for style, path in built.libraries.items()]
    return [*lines, Table("libraries", ("kind", "path"), libraries)]
