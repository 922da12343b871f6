"""What a pipeline takes from PyTorch: the module as plain ONNX, and what it computes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.compare.eager import feeds_of_call
from rmsnorm_export.compare.own_type import OwnType, Reference, load_source
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.wellformed import NEWEST_OPSET
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.rewrite.options import ExportOptions, SourceOptions
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.torch.export.trace import OLDEST_OPSET, trace
from rmsnorm_export.torch.source.example import Example, Loaded

if TYPE_CHECKING:
    import onnx_ir as ir

Arrays = dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A module that is ready to be exported.

    Attributes:
        loaded: the module.
        given: its example inputs.
        own: what it computes in its own float type, where that was asked for and is another.
        reads: Python files outside of installed packages that were imported for it, relative to
            the folder, and their sha256.
    """

    loaded: Loaded
    given: Example
    own: OwnType | Exception | None
    reads: dict[str, str]


def open_subject(
    source: str, folder: Path, *, options: SourceOptions, seed: int, own: bool
) -> Subject:
    """Load the module, with ``folder`` as the working folder; ``own`` as of ``load_source``.

    Raises:
        UsageError, InputError, BackendMissingError: as ``export`` from the command line.
    """
    with _working_folder(folder), _fresh_modules(folder) as reads:
        loaded, given, computed = load_source(
            source, options, seed=seed, option="[export] shapes", own=own
        )
    return Subject(loaded, given, computed, reads)


def open_generative(
    source: str, folder: Path, *, options: SourceOptions, seed: int
) -> tuple[Any, dict[str, Any], tuple[str, ...], dict[str, str]]:
    """A model that generates, inputs that are given for it, notes, and ``reads`` as of `Subject`.

    Raises:
        UsageError, InputError, BackendMissingError: as ``export --task generation``.
    """
    from rmsnorm_export.torch.generation.source import load_generative

    names = ("dtype", "shapes", "dims")
    how = {name: getattr(options, name) for name in names}
    with _working_folder(folder), _fresh_modules(folder) as reads:
        model, inputs, notes = load_generative(
            source, arguments=options.arguments or {}, seed=seed, **how
        )
    return model, inputs, notes, reads


def plain_onnx(
    subject: Subject, opset: int | None, tell: Callable[[str], None]
) -> tuple[ir.Model, str]:
    """The module as ONNX with every norm spelled out, and the exporter's log.

    Raises:
        UsageError: an opset that PyTorch does not write.
        InputError: the module cannot be exported.
    """
    if opset is not None and not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise UsageError(
            "The opset of [export] is out of range.",
            found=f"opset {opset}",
            fix=f"use {OLDEST_OPSET} to {NEWEST_OPSET}, or leave it away",
        )
    given = subject.given
    options = ExportOptions(kwargs=given.kwargs, opset=opset, dynamic_shapes=given.dynamic)
    return trace(subject.loaded.module, given.args, options, tell)


def recorded(runs: Reference, inputs: list[str], outputs: list[str]) -> list[Arrays]:
    """Inputs and outputs of each call of a module, by the names of the file.

    Args:
        runs: the calls.
        inputs, outputs: names in the exported file.

    Returns:
        For each run one mapping; its names begin with ``in:`` or ``out:``.

    Raises:
        VerificationError: the file has other inputs than the module.
    """
    found = []
    for call, answer in runs.runs:
        run = {f"in:{name}": array for name, array in feeds_of_call(inputs, *call).items()}
        found.append(run | {f"out:{n}": a for n, a in zip(outputs, answer.arrays, strict=True)})
    return found


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    """What a factory imports and opens is relative to the pipeline file."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _fresh_modules(folder: Path) -> Iterator[dict[str, str]]:
    """Modules that the block needs from outside of installed packages, with their hashes.

    Those of ``folder`` are forgotten afterwards: the next run of this process reads them anew.

    Yields:
        Path relative to ``folder`` -> sha256, filled at the end of the block.
    """
    before = set(sys.modules)
    reads: dict[str, str] = {}
    importlib.invalidate_caches()
    try:
        yield reads
    finally:
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not file.endswith(".py") or not os.path.isabs(file):
                continue
            ours = name.partition(".")[0] == __name__.partition(".")[0]
            beside = Path(file).is_relative_to(folder) and not _installed(file)
            if ours or not (beside or (name not in before and not _installed(file))):
                continue
            with contextlib.suppress(OSError):
                reads[os.path.relpath(file, folder)] = sha256_of(Path(file))
            if beside and name not in before:
                del sys.modules[name]


def _installed(file: str) -> bool:
    paths = sysconfig.get_paths()
    places = tuple(paths[key] + os.sep for key in ("purelib", "platlib", "stdlib", "platstdlib"))
    return file.startswith(places) or not {"site-packages", "dist-packages"}.isdisjoint(
        Path(file).parts
    )
