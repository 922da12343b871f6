"""The files of a Hugging Face folder: each read once; transformers reads none of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import MALFORMED, refusals_as
from rmsnorm_export.system.reading import inside, open_regular, read_json

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"

_LARGEST_CONFIG, _LARGEST_INDEX = 1 << 24, 1 << 27
"""Bytes of a config, and of the list of a large model's tensors."""

DTYPES = {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""Names of PyTorch's element types, e.g. ``bfloat16``."""

_FLOAT_TAG = "__float__"
"""Key of transformers for a number that JSON cannot say."""


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
            fix="add model.safetensors (save_pretrained writes it; pickles are not read), or give "
            "the config.json itself for random weights",
        )
    what, fix = "The index of the weights cannot be read.", "save it with save_pretrained"
    with refusals_as(what, folder / _INDEX, fix=fix, also=MALFORMED):
        tensors = read_json(folder / _INDEX, _LARGEST_INDEX)["weight_map"]
        names = sorted(set(tensors.values()))
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("weight_map names no files")
    return [_weight_file(folder, name) for name in names]


def _weight_file(folder: Path, name: str) -> Path:
    fix = "complete the folder: save the model again with save_pretrained"
    place = folder / short(name, 200)
    with refusals_as("The weights cannot be read.", place, fix=fix, also=(ValueError,)):
        path = inside(folder, name)
        open_regular(path).close()
        return path
