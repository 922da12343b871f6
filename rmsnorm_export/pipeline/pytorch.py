"""What a pipeline takes from PyTorch: the module as plain ONNX, and what it computes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.engine.model import sha256_of
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.rewrite.wellformed import NEWEST_OPSET
from rmsnorm_export.torch import export_names, export_weights
from rmsnorm_export.torch.export import OLDEST_OPSET, TIDYING, inference
from rmsnorm_export.torch.export_chatter import Chatter, collected
from rmsnorm_export.torch.export_clean import tidy
from rmsnorm_export.torch.export_failure import describe, explain
from rmsnorm_export.torch.export_types import check_types
from rmsnorm_export.torch.shapes import Input, dynamic_shapes, example, parse_shapes
from rmsnorm_export.torch.sources import Loaded, load
from rmsnorm_export.torch.translate import translation_table

_OTHER_SIZES = 24
"""Largest size of a dynamic dimension in the second run of the module."""

Arrays = dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A module that is ready to be exported.

    Attributes:
        loaded: the module.
        inputs: what the user said of its inputs; () when the source gives tensors.
        args, kwargs: example inputs.
        dynamic: for ``torch.export``.
        reads: Python files outside of installed packages that were imported for it, relative to
            the folder, and their sha256.
    """

    loaded: Loaded
    inputs: tuple[Input, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: Any
    reads: dict[str, str]


def open_subject(
    source: str,
    folder: Path,
    *,
    arguments: Mapping[str, Any],
    shapes: str | None,
    dtype: str | None,
    seed: int,
) -> Subject:
    """Load the module, with ``folder`` as the working folder.

    Raises:
        UsageError, InputError, BackendMissingError: as ``export`` from the command line.
    """
    with _working_folder(folder), _fresh_modules(folder) as reads:
        loaded = load(source, arguments=arguments, dtype=dtype)
    program = isinstance(loaded.module, torch.export.ExportedProgram)
    if program and shapes:
        raise UsageError(
            "[export] shapes cannot change an exported program.",
            found=f"shapes with {loaded.name}",
            fix="leave shapes away: the program has its own",
        )
    if program or (loaded.args is not None and not shapes):
        args, kwargs = loaded.args or (), dict(loaded.kwargs or {})
        return Subject(loaded, (), tuple(args), kwargs, None, reads)
    text = shapes or loaded.shapes
    if not text:
        raise UsageError(
            "The inputs of the module are not known.",
            found=f"{loaded.name} gives no example inputs",
            fix='describe them: [export] shapes = "NAME=TYPE[SIZES];...", e.g. '
            '"ids=int64[batch=1..8,seq=1..2048]"',
        )
    inputs = parse_shapes(text)
    made = example(inputs, seed=seed, limit=loaded.limit)
    return Subject(loaded, inputs, (), made, dynamic_shapes(inputs), reads)


def plain_onnx(
    subject: Subject, opset: int | None, tell: Callable[[str], None]
) -> tuple[ir.Model, str]:
    """The module as ONNX with every norm spelled out, and what PyTorch's exporter said.

    This is what ``rmsnorm_export.export`` sees before it makes each norm one node.

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
    module, chatter = subject.loaded.module, Chatter()
    absent = {} if not isinstance(module, torch.nn.Module) else export_weights.missing(module)
    export_weights.check_state(absent, None)
    with collected(chatter, tell):
        try:
            with inference(module):
                program = torch.onnx.export(
                    module,
                    subject.args,
                    kwargs=subject.kwargs or None,
                    dynamo=True,
                    opset_version=opset,
                    dynamic_shapes=subject.dynamic,
                    custom_translation_table=translation_table(),
                    optimize=False,
                )
        except Exception as error:
            raise explain(error, module, subject.args, subject.kwargs) from error
        assert program is not None
        model = program.model
    tell(TIDYING)
    export_names.check_dynamic(model, subject.dynamic)
    with collected(chatter):
        tidy(model)
        check_types(model)
        names = export_names.output_names(program.exported_program, model)
        export_names.rename_outputs(model, names)
    return model, "\n".join(chatter.lines)


def reference(subject: Subject, inputs: list[str], outputs: list[str], seed: int) -> list[Arrays]:
    """Inputs and outputs of the module, by the names of the file; dynamic sizes changed once.

    Args:
        subject: run in evaluation mode.
        inputs, outputs: names in the exported file.
        seed: of the example inputs; the other sizes get the next one.

    Returns:
        For each run one mapping; its names begin with ``in:`` or ``out:``.

    Raises:
        InputError: the module cannot be run.
    """
    feeds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(subject.args, subject.kwargs)]
    if any(size.dynamic for item in subject.inputs for size in item.sizes):
        limit = subject.loaded.limit
        other = example(subject.inputs, seed=seed + 1, limit=limit, largest=_OTHER_SIZES)
        feeds.append(((), other))
    found = []
    for args, kwargs in feeds:
        tensors = _tensors((args, kwargs))
        if not args and set(kwargs) == set(inputs):
            tensors = [kwargs[name] for name in inputs]
        made = _tensors(_run(subject.loaded.module, args, kwargs))
        run = {f"in:{n}": _array(t) for n, t in zip(inputs, tensors, strict=True)}
        run |= {f"out:{n}": _array(t) for n, t in zip(outputs, made, strict=True)}
        found.append(run)
    return found


def _run(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    run = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    try:
        with inference(run):
            return run(*args, **kwargs)
    except Exception as error:
        raise InputError(
            "PyTorch cannot run the module on the inputs of the reference.",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; "
            f"inputs: {describe(args, kwargs)}",
            fix="give other [export] shapes, or reference = false",
        ) from error


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


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
