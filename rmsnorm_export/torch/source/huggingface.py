"""Models of ``transformers`` from local files: a folder with weights, or a bare config.json."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import BackendMissingError, InputError
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.system.machine import memory_available
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.torch.dtypes import dtype_name
from rmsnorm_export.torch.source.cast import check_tensors, stored_tensors
from rmsnorm_export.torch.source.example import Loaded
from rmsnorm_export.torch.source.settings import (
    CONFIG,
    GENERATION_CONFIG,
    read_settings,
    weights_of,
)

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_OPTIONS = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
"""Plain attention, and one matrix product over all experts: a loop over the experts that are in use
depends on the values of a tensor, which cannot be traced."""


def from_folder(path: Path, dtype: torch.dtype | None) -> Loaded:
    """The model of a folder with ``config.json`` and safetensors.

    Raises:
        InputError: no config, no weights, weights that do not fill the model, unknown model type.
        BackendMissingError: ``transformers`` is not installed.
    """
    settings = model_settings(path / CONFIG)
    weights, generation = weights_of(path), generation_settings(path)
    with torch.device("meta"):
        # PyTorch looks up, at the first use of a device and for good, which functions take one;
        # transformers has another torch.linspace in place while it loads.
        torch.empty(0)
    configs = {CONFIG: settings, GENERATION_CONFIG: generation}
    with offline(), weights.alone(configs) as folder:
        config, cls = model_class(path, settings)
        with explained(path, "The weights cannot be loaded."):
            model, info = cls.from_pretrained(
                folder,
                config=config,
                dtype=dtype or "auto",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            model.name_or_path = model.config.name_or_path = str(path)
        lacking = sorted(info["missing_keys"])
        if lacking:
            raise InputError(
                "The folder lacks weights of the model.",
                found=f"{len(lacking)} of {cls.__name__}, the first is {lacking[0]}",
                fix="complete the folder, or name the right class under architectures in "
                "config.json",
            )
        target = dtype or model.dtype
        state = model.state_dict()
        with explained(path, "The weights cannot be read."):
            stored = stored_tensors(weights.files.values())
            cast = (one for one in stored if one[0] not in state or state[one[0]].dtype == target)
            notes = check_tensors(
                (one for one in cast if one[0] not in info["unexpected_keys"]), target
            )
    return _finished(model, path.name or str(path), dtype, notes)


def generation_settings(folder: Path) -> dict[str, Any] | None:
    """Return what a folder says of how its model generates; None where it says nothing.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_settings(folder / GENERATION_CONFIG)
    except FileNotFoundError:
        return None


def from_config(path: Path, dtype: torch.dtype | None) -> Loaded:
    """The model of a ``config.json`` with random weights (seed 0).

    Raises:
        InputError: as for `from_folder`.
        BackendMissingError: ``transformers`` is not installed.
    """
    settings = model_settings(path)
    with offline():
        config, cls = model_class(path, settings)
        kind = dtype or torch.float32
        with explained(path, "The model cannot be made from its config."):
            with torch.device("meta"):
                _check_memory(path, cls._from_config(config, dtype=kind))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = cls._from_config(config, dtype=kind)
    return _finished(model, str(path), kind)


def model_settings(path: Path) -> dict[str, Any]:
    """Return what the ``config.json`` of a model says.

    Raises:
        InputError: it is missing, cannot be read, or names no model.
    """
    try:
        settings = read_settings(path)
    except FileNotFoundError as error:
        raise InputError(
            "The folder is no Hugging Face model."
            if path.parent.is_dir()
            else "The config file does not exist.",
            found=f"no file {path}",
            fix="give a folder with config.json and .safetensors files",
        ) from error
    if not isinstance(settings.get("model_type"), str):
        raise InputError(
            "The config does not say which model it is for.",
            found=f"{path} has no key model_type",
            fix='add it, e.g. "model_type": "llama"',
        )
    return settings


def model_class(path: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return the config and the class of a model of transformers.

    Raises:
        InputError: transformers has none, or the settings do not fit.
        BackendMissingError: transformers is not installed.
    """
    try:
        import transformers as package
    except ModuleNotFoundError as error:
        raise BackendMissingError(
            "A Hugging Face model needs the package transformers.",
            found=f"no package {error.name}",
            fix=pip_install("transformers"),
        ) from error
    transformers: Any = package
    transformers.logging.set_verbosity_error()
    kind, auto_map = settings["model_type"], settings.get("auto_map") or {}
    if kind not in transformers.CONFIG_MAPPING:
        if auto_map:
            raise _own_code(path, f"model_type {kind!r}")
        raise InputError(
            "This transformers has no model of that type.",
            found=f"{path}: model_type {kind!r}, transformers {transformers.__version__}",
            fix="install a newer transformers, or correct model_type",
        )
    _refuse_names(path, transformers.CONFIG_MAPPING[kind], settings)
    with explained(path, "The config does not fit its model type."):
        config = transformers.AutoConfig.for_model(**settings)
        for name, value in _OPTIONS.items():
            with contextlib.suppress(AttributeError):
                setattr(config, f"_{name}", value)
        config.use_cache = False
    named = [str(name) for name in settings.get("architectures") or ()]
    for name in named:
        cls = getattr(transformers, name) if name in dir(transformers) else None
        # An Auto class is no model: it would look for code in the folder, and run it.
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return config, cls
    if own_code := [name for name in named if name in auto_map]:
        raise _own_code(path, f"auto_map gives {own_code[0]}")
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        if type(config) in auto._model_mapping:
            return config, auto._model_mapping[type(config)]
    raise InputError(
        "There is no model class for this config.",
        found=f"{path}: model_type {kind!r}",
        fix="name a class of transformers under architectures in config.json",
    )


def _own_code(path: Path, found: str) -> InputError:
    return InputError(
        "The model brings code of its own, which is not run.",
        found=f"{path}: {found}",
        fix="name a class of transformers under architectures in config.json, or write a factory "
        "that builds the model (package.module:factory)",
    )


def _refuse_names(path: Path, config: type, settings: Mapping[str, Any]) -> None:
    """Settings become attributes: none takes a method's place, or names weights of its own."""
    methods = [key for key in settings if callable(getattr(config, key, None))]
    if names := [*methods, *(settings.keys() & {"transformers_weights"})]:
        raise InputError(
            "The config has a setting that is not supported.",
            found=f"{path}: {short(names[0])}",
            fix="remove it; weights are those of model.safetensors or of its index",
        )


def _check_memory(path: Path, model: torch.nn.Module) -> None:
    """Random weights must fit into the memory that is free: else the system would kill us."""
    need = sum(p.numel() * p.element_size() for p in model.parameters())
    free = memory_available()
    if free is not None and need > free:
        first = next(model.parameters())
        raise InputError(
            "The random weights of this config do not fit into memory.",
            found=f"{path}: {need / 2**30:.1f} GiB for {type(model).__name__} in "
            f"{dtype_name(first.dtype)}, {free / 2**30:.1f} GiB are free",
            fix="make the config smaller (e.g. num_hidden_layers; what it omits has the size "
            "of a full model), use --dtype f16, or a machine with more memory",
        )


@contextlib.contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    """Whatever transformers raises becomes an error of ours."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            what,
            found=f"{path}: {type(error).__name__}: {one_line(str(error), 300) or 'no message'}",
            fix="correct config.json; --debug prints the traceback",
        ) from error


def _finished(
    model: Any, name: str, dtype: torch.dtype | None, notes: Sequence[str] = ()
) -> Loaded:
    model.eval()
    if hasattr(model, "generation_config") and model.generation_config is not None:
        model.generation_config.use_cache = False
    return Loaded(model, name, shapes=_default_shapes(model, dtype), notes=tuple(notes))


def _default_shapes(model: Any, dtype: torch.dtype | None) -> str:
    config, main = model.config, getattr(model, "main_input_name", "input_ids")
    kind = dtype_name(dtype or model.dtype)
    if main == "pixel_values":
        size = getattr(config, "image_size", None)
        channels = getattr(config, "num_channels", 3)
        if not isinstance(size, int):
            return ""
        return f"pixel_values={kind}[batch,{channels},{size},{size}]"
    if main != "input_ids":
        return ""
    text = "input_ids=int64[batch,sequence]"
    both = getattr(config, "is_encoder_decoder", False) and "Encoder" not in type(model).__name__
    return text + (";decoder_input_ids=int64[batch,target]" if both else "")


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """No look-up on a network, and no question on stdin, while a model is loaded."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    stdin = sys.stdin
    try:
        with open(os.devnull, encoding="utf-8") as sys.stdin:
            yield
    finally:
        sys.stdin = stdin
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
