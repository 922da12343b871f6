"""Load a module to export: a factory, a Hugging Face folder, a config.json, a .pt2.

Nothing is downloaded: files are read where they are, and a name that would have to be fetched is an
error.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.op.type_names import TYPE_NAMES
from rmsnorm_export.system.reading import open_regular
from rmsnorm_export.torch.export.failure import collected, explained
from rmsnorm_export.torch.source.cast import check_tensors
from rmsnorm_export.torch.source.example import Loaded
from rmsnorm_export.torch_options import SourceOptions

_FIXES = {
    ".py": "name the function in it that returns the module: {}:NAME",
    ".onnx": "it is exported already: rmsnorm-export optimize {} -o OUT.onnx",
    "": "give package.module:factory, file.py:factory, a local Hugging Face folder, a config.json"
    " or a .pt2 file; models are not downloaded",
}
"""How a source ends -> what to write instead."""


@collected()
def load(source: str, options: SourceOptions) -> Loaded:
    """Return the module that ``source`` names.

    Args:
        source: ``package.module:factory``, ``file.py:factory``, a Hugging Face folder, a
            ``config.json`` or a ``.pt2``.
        options: its type, the arguments of a factory, whether a ``.pt2`` may run what it holds.

    Raises:
        UsageError: the source is none of these, or an option does not go with it.
        InputError: the source cannot be read, raises, or gives something else than a module.
        BackendMissingError: a Hugging Face model without ``transformers``.
    """
    arguments = options.arguments or {}
    dtype = None if options.dtype is None else getattr(torch, TYPE_NAMES[options.dtype])
    path = Path(source)
    if not path.exists() and ":" in source:
        return _from_factory(source, arguments, dtype)
    if arguments:
        raise UsageError(
            "--arg is for a factory.",
            found=f"--arg {next(iter(arguments))}=..., with {source}",
            fix="omit --arg, or give package.module:factory",
        )
    if path.suffix == ".pt2" and path.exists():
        return _from_program(path, dtype, options.trust_source)
    if path.is_dir() or path.name.endswith(".json"):
        from rmsnorm_export.torch.source.huggingface import from_config, from_folder

        return (from_folder if path.is_dir() else from_config)(path, dtype)
    raise UsageError(
        "The source cannot be exported.",
        found=f"{source} is "
        + ("a file of another kind" if path.exists() else "no file or folder that exists"),
        fix=_FIXES.get(path.suffix, _FIXES[""]).format(source),
    )


def _from_program(path: Path, dtype: torch.dtype | None, trusted: bool) -> Loaded:
    if dtype is not None:
        raise UsageError(
            "--dtype cannot change an exported program.",
            found=f"--dtype with {path}",
            fix="omit --dtype, or export the program again in that type",
        )
    if not trusted:
        raise InputError(
            "A .pt2 file can run code when it is loaded.",
            found=str(path),
            fix="for a file that you or people you trust have made, use --trust-source; or give "
            "the factory of the model",
        )
    fix = "save it again with torch.export.save, with this version of PyTorch"
    with explained("The .pt2 file cannot be read.", fix, path), open_regular(path) as file:
        program = torch.export.load(file)
    args, kwargs = program.example_inputs or (None, None)
    return Loaded(program, path.name, args, kwargs)


def _from_factory(source: str, arguments: Mapping[str, Any], dtype: torch.dtype | None) -> Loaded:
    place, _, name = source.rpartition(":")
    folder, module_name = os.path.split(place) if place.endswith(".py") else ("", place)
    module_name = module_name.removesuffix(".py")
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            "The factory is not named as package.module:factory.",
            found=repr(source),
            fix="write e.g. mypackage.models:make_llama, or models.py:make_llama",
        )
    if place.endswith(".py") and not Path(place).is_file():
        what, fix = "The file of the factory is missing.", "check its path"
        raise InputError(what, found=place, fix=fix)
    with _modules_of(folder):
        fix = "check the names: modules are looked for in the working folder and the installed "
        fix += "packages; or correct the module, --debug prints the traceback"
        with explained(f"The factory {source} cannot be imported.", fix):
            factory = operator.attrgetter(name)(importlib.import_module(module_name))
        fix = "correct the factory or its --arg; --debug prints the traceback"
        with explained(f"The factory {source} raised an exception.", fix):
            result = factory(**arguments)
    return _loaded(result, source, dtype)


def _loaded(result: object, source: str, dtype: torch.dtype | None) -> Loaded:
    """Read what a factory returned: a module, or one with its inputs."""
    parts = result if isinstance(result, tuple) else (result,)
    module, args, kwargs = (*parts, None, None)[:3]
    args = (args,) if isinstance(args, torch.Tensor) else args
    if (
        not isinstance(module, torch.nn.Module | torch.export.ExportedProgram)
        or not isinstance(args, tuple | list | None)
        or not isinstance(kwargs, Mapping | None)
    ):
        raise InputError(
            f"The factory {source} returned something else than a module.",
            found=", ".join(type(part).__name__ for part in parts),
            fix="return a torch.nn.Module, or (module, args) or (module, args, kwargs) with a "
            "tuple and a dictionary of example inputs",
        )
    args = tuple(args or ()) if args is not None or kwargs else None
    notes: list[str] = []
    if dtype is not None and isinstance(module, torch.nn.Module):
        notes = check_tensors([*module.named_parameters(), *module.named_buffers()], dtype)
        module = module.to(dtype)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda one: one.to(dtype) if one.is_floating_point() else one,
            (args, kwargs),
        )
    return Loaded(module, source, args, kwargs, notes=tuple(notes))


@contextlib.contextmanager
def _modules_of(folder: str) -> Iterator[None]:
    """Modules of a folder, by default the working one as with ``python -m``, can be imported."""
    folder = os.path.abspath(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
