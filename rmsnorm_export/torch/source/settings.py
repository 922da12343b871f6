"""The files of a Hugging Face folder: each read once, and handed to transformers as it was read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import first_line, quoted, short
from rmsnorm_export.system.reading import file_within, open_regular, read_json

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"

LARGEST_CONFIG, _LARGEST_INDEX = 1 << 24, 1 << 27
"""Bytes of a config, and of the list of a large model's tensors."""

DTYPES = {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""Names of PyTorch's element types, e.g. ``bfloat16``."""

_FLOAT_TAG = "__float__"
"""Key of transformers for a number that JSON cannot say."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a ``config.json`` or ``generation_config.json`` says.

    Raises:
        FileNotFoundError: there is none.
        InputError: it is no object of JSON, or names a type that PyTorch has not.
    """
    try:
        settings = _numbers(read_json(path, LARGEST_CONFIG, infinite=True))
        if not isinstance(settings, dict):
            raise ValueError("it is no object")
        _check_types(settings)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            "The config cannot be read.",
            found=f"{path}: {getattr(error, 'strerror', None) or first_line(error)}",
            fix="give the config.json of a Hugging Face model",
        ) from error
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
    """transformers takes whatever attribute of PyTorch a type is called by."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, dict | list):
            _check_types(part)
        elif (
            isinstance(part, str)
            and "dtype" in str(key)
            and part.removeprefix("torch.") not in {"auto", *DTYPES}
        ):
            raise ValueError(f"{key}: {quoted(part)} is no type of PyTorch")


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a folder.

    Attributes:
        files: names in the folder -> the files themselves, links resolved.
        tensors: tensor -> the file that it is in; None where one file has all.
    """

    files: Mapping[str, Path]
    tensors: Mapping[str, str] | None

    @contextlib.contextmanager
    def alone(self, configs: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Path]:
        """Yield a private folder of these weights, for ``from_pretrained``.

        Args:
            configs: what was read of each, by the name of its file.
        """
        with tempfile.TemporaryDirectory(prefix="rmsnorm-export-") as name:
            folder = Path(name)
            if self.tensors is None:
                (folder / _WHOLE).symlink_to(self.files[_WHOLE])
            else:
                names = {file: f"{n}.safetensors" for n, file in enumerate(self.files)}
                for file, short_name in names.items():
                    (folder / short_name).symlink_to(self.files[file])
                index = {tensor: names[file] for tensor, file in self.tensors.items()}
                text = json.dumps({"metadata": {}, "weight_map": index})
                (folder / _INDEX).write_text(text, encoding="utf-8")
            for file, settings in configs.items():
                if settings is not None:
                    (folder / file).write_text(json.dumps(settings), encoding="utf-8")
            yield folder


def weights_of(folder: Path) -> Weights:
    """Return the weights that transformers loads of a folder: one file, or those of an index.

    Raises:
        InputError: there are none, they lie outside of the folder, or cannot be read.
    """
    if os.path.lexists(folder / _WHOLE):
        return Weights({_WHOLE: _weight_file(folder, _WHOLE)}, None)
    try:
        tensors = read_json(folder / _INDEX, _LARGEST_INDEX)["weight_map"]
        if not tensors or not all(isinstance(file, str) for file in tensors.values()):
            raise ValueError("weight_map names no files")
    except FileNotFoundError:
        raise _without_weights(folder) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(
            "The index of the weights cannot be read.",
            found=f"{folder / _INDEX}: {reason}",
            fix="save the model again with save_pretrained",
        ) from error
    names = sorted(set(tensors.values()))
    return Weights({name: _weight_file(folder, name) for name in names}, tensors)


def _weight_file(folder: Path, name: str) -> Path:
    try:
        path = file_within(folder, name)
        if path is None:
            raise InputError(
                "The weights lie outside of the folder.",
                found=f"{quoted(name, 200)} of {short(str(folder), 200)}",
                fix="copy them into the folder, and name them as they are called there",
            )
        open_regular(path).close()
    except (OSError, ValueError) as error:
        raise InputError(
            "The weights cannot be read.",
            found=f"{short(str(folder), 200)}: {quoted(name, 200)}: "
            f"{getattr(error, 'strerror', None) or first_line(error)}",
            fix="complete the folder: save the model again with save_pretrained",
        ) from error
    return path


def _without_weights(folder: Path) -> InputError:
    others = [p.name for p in sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))]
    return InputError(
        "The folder has no weights.",
        found=f"{folder} holds neither {_WHOLE} nor its index"
        + (f", only {others[0]}, which is a pickle" if others else ""),
        fix="add model.safetensors (save_pretrained writes it), or give the config.json itself "
        "for random weights",
    )
