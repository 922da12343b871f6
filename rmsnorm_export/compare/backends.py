"""Which backend runs a model, and the model made ready for it to the point where work begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from rmsnorm_export.compare import engine_file, ort
from rmsnorm_export.compare.engine_built import BuiltSide
from rmsnorm_export.compare.side import Backend, BackendChoice, Side
from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.graph.load import Source, load_model
from rmsnorm_export.graph.source import Sourced, open_source
from rmsnorm_export.printable import short
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import BACKENDS
from rmsnorm_export.tensorrt.engine.result import sidecar_path

if TYPE_CHECKING:
    import torch

    Model: TypeAlias = Source | torch.nn.Module | torch.export.ExportedProgram

CHOICES: tuple[str, ...] = get_args(BackendChoice)
_ENGINES = (".engine", ".plan")
_MAGIC = (b"vtrt", b"ptrt", b"ftrt")
"""What an engine begins with: TensorRT-RTX 1.7.1, TensorRT 11."""


def choose(model: Model, choice: str) -> tuple[Backend, bool]:
    """The backend of a model, and whether it is an engine in a file.

    Raises:
        UsageError: there is no such backend, or it does not take such a model.
    """
    if choice not in CHOICES:
        raise UsageError(
            "There is no such backend.", found=repr(choice), fix=f"use one of {', '.join(CHOICES)}"
        )
    torch_model = is_module(model) or _suffix(model) == ".pt2"
    engine = _is_engine(model)
    if torch_model and choice not in ("auto", "torch"):
        raise UsageError(
            f"The backend {choice} runs no PyTorch model.",
            found=short(_shown(model), 300),
            fix="export it first, or use the backend torch",
        )
    if engine and choice in ("torch", "onnxruntime", "onnxruntime-cuda"):
        raise UsageError(
            f"The backend {choice} runs no engine.",
            found=short(_shown(model), 300),
            fix="leave the backend away: the file says which it is",
        )
    if choice == "auto":
        # Which of the two an engine is for, its checks tell.
        return ("torch" if torch_model else "tensorrt" if engine else "onnxruntime"), engine
    return choice, engine  # type: ignore[return-value]


def require(backend: Backend, *, engine: bool) -> None:
    """Before any work: what the backend needs is there.

    Raises:
        BackendMissingError: a package or a GPU is missing.
    """
    if backend == "torch":
        if not is_installed("torch"):
            raise BackendMissingError(
                "This needs PyTorch.",
                found="no package torch",
                fix='pip install "rmsnorm-export[torch]"',
            )
    elif backend in BACKENDS:
        if not engine:  # a file has checks of its own, which say more
            engine_file.require(BACKENDS[backend])
            engine_file.require_gpu(BACKENDS[backend], "the engine that would be built")
    else:
        ort.require("cuda" if backend == "onnxruntime-cuda" else "cpu")


def open_sides(
    a: Model, b: Model, choices: tuple[str, str], optimize: tuple[bool, bool]
) -> tuple[Side, Side]:
    """Both models, after what both backends need was found to be there.

    Engines come first: their checks may end it all, and reading a model may take long.

    Args:
        a, b: as for ``rmsnorm_export.verify``.
        choices: their backends.
        optimize: ONNX Runtime's graph optimization.

    Raises:
        UsageError, InputError, BackendMissingError: as there.
    """
    models = (a, b)
    chosen = [choose(model, choice) for model, choice in zip(models, choices, strict=True)]
    for backend, engine in chosen:
        require(backend, engine=engine)
    sides: dict[int, Side] = {}
    for number in sorted((0, 1), key=lambda number: not chosen[number][1]):
        sides[number] = open_side(models[number], choices[number], optimize=optimize[number])
    return sides[0], sides[1]


def open_side(model: Model, choice: str, *, optimize: bool) -> Side:
    """A model with what runs it.

    Args:
        model: as for ``rmsnorm_export.verify``.
        choice: its backend, or ``auto``.
        optimize: ONNX Runtime's graph optimization.

    Raises:
        UsageError, InputError, BackendMissingError: as there.
    """
    backend, engine = choose(model, choice)
    if backend == "torch":
        return _torch_side(model)
    if engine:
        assert isinstance(model, str | os.PathLike)
        return engine_file.open_engine(Path(os.path.abspath(os.fspath(model))), choice)
    source = checked(model)  # type: ignore[arg-type]
    if backend in BACKENDS:
        return BuiltSide(source, BACKENDS[backend])
    return ort.OrtSide(source, "cuda" if backend == "onnxruntime-cuda" else "cpu", optimize)


def checked(source: Source) -> Sourced:
    """A model as ``optimize`` reads it; the runtime gets the original, not what was put right.

    Raises:
        UsageError, InputError: as ``load_model``.
    """
    loaded = load_model(source)
    if loaded.path is not None:
        return Sourced(str(loaded.path), loaded.model, loaded.description)
    assert not isinstance(source, str | os.PathLike)
    return open_source(source)


def is_module(model: object) -> bool:
    """Whether it is a PyTorch module or exported program; PyTorch is not imported for that."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    return isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def _torch_side(model: Model) -> Side:
    from rmsnorm_export.compare.eager import TorchSide
    from rmsnorm_export.torch.source.load import load
    from rmsnorm_export.torch.source.loaded import Loaded, integer_limit

    if isinstance(model, str | os.PathLike):
        return TorchSide(load(os.fspath(model), arguments={}, dtype=None))
    if not is_module(model):
        raise UsageError(
            "The backend torch runs no such model.",
            found=type(model).__name__,
            fix="give a torch.nn.Module, an ExportedProgram, a .pt2 file, or a source that export"
            " takes",
        )
    module: Any = model
    given = getattr(module, "example_inputs", None)
    program = not callable(getattr(module, "forward", None))
    args, kwargs = given if program and given is not None else (None, None)
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    return TorchSide(Loaded(module, name, args, kwargs, limit=integer_limit(module)))


def _is_engine(model: object) -> bool:
    if not isinstance(model, str | os.PathLike):
        return False
    if _suffix(model) in _ENGINES or _suffix(model) == ".onnx":
        return _suffix(model) != ".onnx"
    path = Path(os.fspath(model))
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) in _MAGIC or _is_record(sidecar_path(path))
    except (OSError, ValueError):
        return False  # reading it as a model says what is wrong


def _is_record(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"kind": "engine_record"' in file.read(200)


def _suffix(model: object) -> str:
    return Path(os.fspath(model)).suffix.lower() if isinstance(model, str | os.PathLike) else ""


def _shown(model: object) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
