"""Where a module to export comes from: a factory, a Hugging Face folder, a config.json, a .pt2.

Nothing is downloaded: files are read where they are, and a name that would have to be fetched is an
error.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.op.type_names import TYPE_NAMES, float_name
from rmsnorm_export.printable import first_line
from rmsnorm_export.system.files import missing_fix
from rmsnorm_export.system.reading import open_regular
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.source.cast import check_tensors
from rmsnorm_export.torch.source.example import Loaded


@collected()
def load(
    source: str, *, arguments: Mapping[str, Any], dtype: str | None, trust_source: bool = False
) -> Loaded:
    """The module that ``source`` names.

    Args:
        source: ``package.module:factory``, a Hugging Face folder, a ``config.json`` or a ``.pt2``.
        arguments: for the factory, by name.
        dtype: ``f32``, ``f16`` or ``bf16``, in any spelling; None: as the source has it
            (f32 for random weights).
        trust_source: a ``.pt2`` may run what it holds.

    Raises:
        UsageError: the source is none of these, or an option does not go with it.
        InputError: the source cannot be read, raises, or gives something else than a module.
        BackendMissingError: a Hugging Face model without ``transformers``.
    """
    converted = None if dtype is None else getattr(torch, TYPE_NAMES[float_name(dtype)])
    path = Path(source)
    if not path.exists() and ":" in source:
        return _from_factory(source, arguments, converted)
    if arguments:
        raise UsageError(
            "--arg is for a factory.",
            found=f"--arg {next(iter(arguments))}=..., with {source}",
            fix="omit --arg, or give package.module:factory",
        )
    if path.suffix == ".pt2":
        return _from_program(path, converted, trust_source)
    if path.is_dir() or path.name.endswith(".json"):
        from rmsnorm_export.torch.source.huggingface import from_config, from_folder

        return (from_folder if path.is_dir() else from_config)(path, converted)
    raise UsageError(
        "The source cannot be exported.",
        found=f"{source} is no file or folder that exists"
        if not path.exists()
        else f"{source} is a file of another kind",
        fix="give package.module:factory, a local Hugging Face folder, a config.json or a .pt2 "
        "file; models are not downloaded",
    )


def _from_program(path: Path, dtype: torch.dtype | None, trusted: bool) -> Loaded:
    if not path.exists():
        raise InputError("The .pt2 file does not exist.", found=str(path), fix=missing_fix(path))
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
    try:
        with open_regular(path) as file:
            program = torch.export.load(file)
    except Exception as error:  # of pickle, zipfile, PyTorch
        raise InputError(
            "The .pt2 file cannot be read.",
            found=f"{path}: {type(error).__name__}: {first_line(error)}",
            fix="save it again with torch.export.save, with this version of PyTorch",
        ) from error
    args, kwargs = program.example_inputs or (None, None)
    return Loaded(program, path.name, args, kwargs)


def _from_factory(source: str, arguments: Mapping[str, Any], dtype: torch.dtype | None) -> Loaded:
    module_name, _, name = source.partition(":")
    factory = _find(source, module_name, name)
    with contextlib.suppress(ValueError):  # some built-ins have no signature
        signature = inspect.signature(factory)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise UsageError(
                "The arguments do not fit the factory.",
                found=f"{error}; {name}{signature}",
                fix="give each with --arg NAME=VALUE",
            ) from error
    try:
        with _working_folder():
            made = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"The factory {source} raised an exception.",
            found=f"{type(error).__name__}: {first_line(error)}{_place(error)}",
            fix="correct the factory or its --arg; --debug prints the traceback",
        ) from error
    return _made_module(made, source, dtype)


def _made_module(made: object, source: str, dtype: torch.dtype | None) -> Loaded:
    parts = made if isinstance(made, tuple) else (made,)
    module, args, kwargs = (*parts, None, None, None)[:3]
    if isinstance(args, torch.Tensor):
        args = (args,)
    good = isinstance(module, torch.nn.Module | torch.export.ExportedProgram)
    good = good and len(parts) <= 3 and isinstance(args, tuple | list | None)
    if not good or not isinstance(kwargs, Mapping | None):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InputError(
            f"The factory {source} returned something else than a module.",
            found=f"({kinds})" if isinstance(made, tuple) else kinds,
            fix="return a torch.nn.Module, or (module, args) or (module, args, kwargs) with a "
            "tuple and a dictionary of example inputs",
        )
    assert isinstance(module, torch.nn.Module | torch.export.ExportedProgram)
    notes: list[str] = []
    if dtype is not None and isinstance(module, torch.nn.Module):
        notes = check_tensors([*module.named_parameters(), *module.named_buffers()], dtype)
        module = module.to(dtype)
        args = None if args is None else tuple(_converted(value, dtype) for value in args)
        kwargs = None if kwargs is None else {k: _converted(v, dtype) for k, v in kwargs.items()}
    args = None if args is None else tuple(args)
    kwargs = kwargs if kwargs or args is not None else None
    return Loaded(module, source, args, kwargs, notes=tuple(notes))


def _converted(value: Any, dtype: torch.dtype) -> Any:
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floats else value


def _find(source: str, module_name: str, name: str) -> Any:
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            "The factory is not named as package.module:factory.",
            found=repr(source),
            fix="write e.g. mypackage.models:make_llama",
        )
    try:
        with _working_folder():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_named = missing is not None and f"{module_name}.".startswith(f"{missing}.")
        raise (UsageError if is_named else InputError)(
            f"The module {module_name} of the factory cannot be imported.",
            found=f"{type(error).__name__}: {first_line(error)}{'' if is_named else _place(error)}",
            fix="check the name: modules are looked for in the working folder and the installed "
            "packages; or correct the module, --debug prints the traceback",
        ) from error
    try:
        factory: Any = operator.attrgetter(name)(module)
    except AttributeError:
        factory = None
    if not callable(factory):
        raise UsageError(
            "The module has no factory of this name.",
            found=f"{module_name} has no {name} that can be called",
            fix="name a function or class that returns a torch.nn.Module",
        )
    return factory


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """Modules of the working folder can be imported, as with ``python -m``."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _place(error: BaseException) -> str:
    """File and line at which ``error`` was raised: the last outside of packages and of this one."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("purelib", "platlib", "stdlib")]
    folders.append(str(Path(__file__).resolve().parents[2]))
    others = ("<", *(folder + os.sep for folder in folders))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
