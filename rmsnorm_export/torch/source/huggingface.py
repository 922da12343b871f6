"""Models of ``transformers`` from local files: a folder with weights, or a bare config.json.

Each file is read once, and here; transformers reads none of them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import plural, quoted, short
from rmsnorm_export.system.files import MALFORMED, refusals_as
from rmsnorm_export.system.machine import memory_available
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.reading import inside, open_regular, read_json
from rmsnorm_export.torch.dtypes import dtype_name
from rmsnorm_export.torch.export.failure import explained
from rmsnorm_export.torch.source.cast import check_tensors
from rmsnorm_export.torch.source.example import Loaded

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"

_LARGEST_CONFIG, _LARGEST_INDEX = 1 << 24, 1 << 27
"""Bytes of a config, and of the list of a large model's tensors."""

DTYPES = {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""Names of PyTorch's element types, e.g. ``bfloat16``."""

_FLOAT_TAG = "__float__"
"""Key of transformers for a number that JSON cannot say."""


_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_CORRECT = "correct config.json; --debug prints the traceback"
_COMPLETE = "complete the folder: save the model again with save_pretrained"
_UNQUANTIZED = (
    "install what reads these weights, or give them as they were before they were quantized; "
    "--debug prints the traceback"
)
_ADAPTER = "adapter_config.json"
"""Of PEFT, beside weights that are added to those of a model."""
_MERGE = "merge it into its model by merge_and_unload of PEFT, and save that"

_OPTIONS = {"_attn_implementation": "eager", "_experts_implementation": "batched_mm"}
"""Plain attention, and one matrix product over all experts: a loop over the experts that are in use
depends on the values of a tensor, which cannot be traced."""


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return what a ``config.json`` or ``generation_config.json`` says; None where there is none.

    Raises:
        InputError: it is no object of JSON, or names a type that PyTorch has not.
    """
    what, fix = "The config cannot be read.", "give the config.json of a Hugging Face model"
    with refusals_as(what, path, fix=fix, also=(ValueError,)):
        try:
            settings = _numbers(read_json(path, _LARGEST_CONFIG, infinite=True))
        except FileNotFoundError:
            return None
        if not isinstance(settings, dict):
            raise ValueError("it is no object")
        _check_types(settings)
        return settings


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT_TAG} and value[_FLOAT_TAG] in ("NaN", "Infinity", "-Infinity"):
        return float(value[_FLOAT_TAG])
    return {key: _numbers(part) for key, part in value.items()}


def _check_types(value: Any) -> None:
    """Refuse what is no type: transformers takes whatever attribute of PyTorch it is called by."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, dict | list):
            _check_types(part)
        elif not isinstance(part, str) or "dtype" not in str(key):
            continue
        elif part.removeprefix("torch.") not in {"auto", *DTYPES}:
            raise ValueError(f"{key}: {quoted(part)} is no type of PyTorch")


def weight_files(folder: Path) -> list[Path]:
    """Return the weights that transformers loads of a folder: one file, or those of an index.

    Raises:
        InputError: there are none, they lie outside of the folder, or cannot be read.
    """
    if os.path.lexists(folder / _WHOLE):
        return [_weight_file(folder, _WHOLE)]
    if not os.path.lexists(folder / _INDEX):
        raise InputError(
            "The folder has no weights.",
            found=f"{folder} holds neither {_WHOLE} nor its index",
            fix="add model.safetensors (save_pretrained writes it; pickles and GGUF are not read), "
            "or give the config.json itself for random weights",
        )
    what, fix = "The index of the weights cannot be read.", "save it with save_pretrained"
    with refusals_as(what, folder / _INDEX, fix=fix, also=MALFORMED):
        tensors = read_json(folder / _INDEX, _LARGEST_INDEX)["weight_map"]
        names = sorted(set(tensors.values()))
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("weight_map names no files")
    return [_weight_file(folder, name) for name in names]


def _weight_file(folder: Path, name: str) -> Path:
    place = folder / short(name, 200)
    with refusals_as("The weights cannot be read.", place, fix=_COMPLETE, also=(ValueError,)):
        path = inside(folder, name)
        open_regular(path).close()
        return path


def from_folder(path: Path, dtype: torch.dtype | None) -> Loaded:
    """Return the model of a folder with ``config.json`` and safetensors.

    Raises:
        InputError: no config, no weights, weights that do not fill the model, unknown model type.
        BackendMissingError: ``transformers`` is not installed.
    """
    settings, generation = model_settings(path / CONFIG), read_settings(path / GENERATION_CONFIG)
    files = weight_files(path)
    with torch.device("meta"):
        # PyTorch looks up, at the first use of a device and for good, which functions take one;
        # transformers has another torch.linspace in place while it loads.
        torch.empty(0)
    with offline():
        config, cls = model_class(path, settings)
        from safetensors.torch import load_file

        stored: dict[str, torch.Tensor] = {}
        for file in files:
            with explained("The weights cannot be read.", _COMPLETE, file):
                stored |= load_file(file)  # of which nothing is read before it is used
        quantized = "quantization_config" in settings
        fix = _UNQUANTIZED if quantized else _CORRECT
        with explained("The weights cannot be loaded.", fix, path):
            # No path: transformers would look there for adapters and for code.
            model, info = cls.from_pretrained(
                None, config=config, state_dict=stored, dtype=dtype or "auto",
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
            model.name_or_path = model.config.name_or_path = str(path)
            if generation is not None and model.can_generate():
                model.generation_config = type(model.generation_config).from_dict(generation)
        for name, own, expected in sorted(info["mismatched_keys"]):
            raise InputError(
                "The weights do not fit the config.",
                found=f"{path}: {short(name)} is {[*own]}, of {cls.__name__} it is {[*expected]}",
                fix="correct config.json, or put back the weights that were saved with it",
            )
        if lacking := sorted(info["missing_keys"]):
            raise InputError(
                "The folder lacks weights of the model.",
                found=f"{len(lacking)} of {cls.__name__}, the first is {lacking[0]}",
                fix=fix
                if quantized
                else "complete the folder, or name the right class under "
                "architectures in config.json",
            )
    target, state = dtype or model.dtype, model.state_dict()
    cast = [
        (name, tensor)
        for name, tensor in stored.items()
        if name not in info["unexpected_keys"]
        and (name not in state or state[name].dtype == target)
    ]
    notes = [*check_tensors(cast, target)]
    if unused := sorted(info["unexpected_keys"]):
        count = plural(len(unused), "tensor")
        notes.append(f"{count} that {cls.__name__} does not have, as {short(unused[0])}, not used")
    if (path / _ADAPTER).exists():
        notes.append(f"the adapter of {_ADAPTER} is not applied: {_MERGE}")
    return _finished(model, path.name or str(path), notes)


def from_config(path: Path, dtype: torch.dtype | None) -> Loaded:
    """Return the model of a ``config.json`` with random weights (seed 0).

    Raises:
        InputError: as for `from_folder`; or the weights do not fit into memory.
        BackendMissingError: ``transformers`` is not installed.
    """
    settings = model_settings(path)
    kind = dtype or torch.float32
    with offline():
        config, cls = model_class(path, settings)
        what = "The model cannot be made from its config."
        with explained(what, _CORRECT, path), torch.device("meta"):
            frame = cls._from_config(config, dtype=kind)
        need = sum(p.numel() * p.element_size() for p in frame.parameters())
        free = memory_available()
        if free is not None and need > free:  # the system would end this process
            raise InputError(
                "The random weights of this config do not fit into memory.",
                found=f"{path}: {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free",
                fix="make the config smaller (e.g. num_hidden_layers), or use --dtype f16",
            )
        with explained(what, _CORRECT, path), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = cls._from_config(config, dtype=kind)
    return _finished(model, str(path))


def model_settings(path: Path) -> dict[str, Any]:
    """Return what the ``config.json`` of a model says.

    Raises:
        InputError: it is missing, cannot be read, or names no model.
    """
    settings = read_settings(path)
    if settings is None or not isinstance(settings.get("model_type"), str):
        is_adapter = settings is None and (path.parent / _ADAPTER).exists()
        raise InputError(
            "This is no Hugging Face model.",
            found=f"{path.parent}: an adapter alone" if is_adapter
            else f"no file {path}" if settings is None else f"{path} has no key model_type",
            fix=_MERGE if is_adapter
            else "give a folder with config.json and .safetensors files, or a config.json",
        )  # fmt: skip
    return settings


def model_class(path: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return the config and the class of a model of transformers.

    Raises:
        InputError: transformers has none, or the settings do not fit.
        BackendMissingError: transformers is not installed.
    """
    require_package("transformers", "A Hugging Face model", "transformers")
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    kind, auto_map = settings["model_type"], settings.get("auto_map") or {}
    if kind not in transformers.CONFIG_MAPPING:
        raise _no_class(path, f"model_type {kind!r}", own_code=bool(auto_map))
    # Settings become attributes: none takes a method's place, or names weights of its own.
    config_class = transformers.CONFIG_MAPPING[kind]
    names = [key for key in settings if callable(getattr(config_class, key, None))]
    if names := [*names, *(settings.keys() & {"transformers_weights"})]:
        raise InputError(
            "The config has a setting that is not supported.",
            found=f"{path}: {short(names[0])}",
            fix="remove it; weights are those of model.safetensors or of its index",
        )
    with explained("The config does not fit its model type.", _CORRECT, path):
        config = transformers.AutoConfig.for_model(**settings)
        for name, value in _OPTIONS.items():
            with contextlib.suppress(AttributeError):
                setattr(config, name, value)
        config.use_cache = False
    named = [str(name) for name in settings.get("architectures") or ()]
    for name in named:
        cls = getattr(transformers, name) if name in dir(transformers) else None
        # An Auto class is no model: it would look for code in the folder, and run it.
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return config, cls
    if own_code := [name for name in named if name in auto_map]:
        raise _no_class(path, own_code[0], own_code=True)
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        if type(config) in auto._model_mapping:
            return config, auto._model_mapping[type(config)]
    raise _no_class(path, f"model_type {kind!r} alone", own_code=False)


def _no_class(path: Path, name: str, *, own_code: bool) -> InputError:
    if own_code:
        what = "The model brings code of its own, which is not run."
    else:
        what = "The installed transformers has no model of this name."
    return InputError(
        what,
        found=f"{path}: {short(name)}",
        fix="name a class of transformers under architectures in config.json, install a newer "
        "transformers, or write a factory that builds the model (package.module:factory)",
    )


def _finished(model: Any, name: str, notes: Sequence[str] = ()) -> Loaded:
    model.eval()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.use_cache = False
    return Loaded(model, name, shapes=_default_shapes(model), notes=tuple(notes))


def _default_shapes(model: Any) -> str:
    config, main = model.config, getattr(model, "main_input_name", "input_ids")
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and isinstance(size, int):
        channels = getattr(config, "num_channels", 3)
        return f"pixel_values={dtype_name(model.dtype)}[batch,{channels},{size},{size}]"
    if main != "input_ids":
        return ""
    text = "input_ids=int64[batch,sequence]"
    both = getattr(config, "is_encoder_decoder", False) and "Encoder" not in type(model).__name__
    return text + (";decoder_input_ids=int64[batch,target]" if both else "")


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """No look-up on a network, and no question on stdin, while a model is loaded."""
    before, stdin = dict(os.environ), sys.stdin
    os.environ.update(_OFFLINE)
    try:
        with open(os.devnull, encoding="utf-8") as sys.stdin:
            yield
    finally:
        sys.stdin = stdin
        for name in _OFFLINE:
            del os.environ[name]
        os.environ.update({name: before[name] for name in _OFFLINE if name in before})
