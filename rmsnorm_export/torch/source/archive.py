"""A ``.pt2`` archive, read only when nothing in it can run code.

What PyTorch 2.13 makes of such a file runs code in more than one way: pickles whose restricted
reading fails are read without restriction; operators are looked up by dotted names, of which
``torch.os.system`` is one; symbolic sizes and guards are evaluated as Python; names of values
become part of the generated source of ``forward``; types of containers name modules to import;
compiled libraries are opened. So all of it is looked at first, by what is known to be harmless:
what is not is refused. The file is opened once and read by the same reader as PyTorch does.
Seen to accept ordinary files of PyTorch 2.7, 2.9, 2.13 and 2.14, and to refuse evil ones made of
them, under PyTorch 2.13 and 2.14.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.export.pt2_archive import constants
from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import first_line, short
from rmsnorm_export.torch.source.program_text import (
    PLAIN,
    is_arithmetic,
    is_known_operator,
    is_plain_container,
)

_COMPILED = (constants.AOTINDUCTOR_DIR, constants.EXECUTORCH_DIR, constants.MTIA_DIR)
_PICKLED = (constants.CUSTOM_OBJ_FILENAME_PREFIX, constants.OPAQUE_OBJ_FILENAME_PREFIX)
_OLD_PROGRAM = "serialized_exported_program.json"
"""Of archives written before PyTorch 2.8; in them all else that counts is pickled."""

_FILE_NAME = re.compile(r"\w[\w.\-]*")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_NAMES = {
    **dict.fromkeys(("tensor_values", "sym_int_values", "sym_float_values"), _IDENTIFIER),
    **dict.fromkeys(("sym_bool_values", "as_string_to_argument"), _IDENTIFIER),
    # PyTorch counts up to the number of a symbol.
    "range_constraints": re.compile(r"s[0-9]{1,18}|[a-z_]+[0-9]{1,6}"),
}
"""Key of a mapping -> the names that it may have."""


class UnsafeError(Exception):
    """Reading the archive could run code; the message says where and what it is."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def load_program(path: Path, *, trusted: bool) -> tuple[torch.export.ExportedProgram, str]:
    """The program of a ``.pt2`` file, and a note on what was trusted, "" if nothing was.

    Args:
        trusted: load it whatever it holds.

    Raises:
        InputError: the file cannot be read, or holds what can run code.
    """
    try:
        with path.open("rb") as file:
            note, checked = "", True
            try:
                old = _check_archive(file)
            except UnsafeError as unsafe:
                if not trusted:
                    raise InputError(
                        "The .pt2 file holds more than data: reading it could run code.",
                        found=f"{path}: {unsafe}",
                        fix="save it again with torch.export.save, without what is named; or, for "
                        "a file of your own, trust it with --trust-source",
                    ) from unsafe
                checked, note = False, f"{path.name} was loaded although it can run code: {unsafe}"
            file.seek(0)
            if not checked:
                return torch.export.load(file), note
            with _restricted_pickles():
                program = (
                    torch.export.load(file) if old else load_pt2(file).exported_programs["model"]
                )
            # Python text, which would be run with the program.
            program._guards_code = []
            return program, ""
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "The .pt2 file cannot be read.",
            found=f"{path}: {type(error).__name__}: {first_line(error)}",
            fix="save it again with torch.export.save, with this version of PyTorch",
        ) from error


@contextlib.contextmanager
def _restricted_pickles() -> Iterator[None]:
    """``torch.load`` reads weights only, whatever its caller asks for."""
    wanted = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_archive(file: BinaryIO) -> bool:
    """Look at all that PyTorch will read but the numbers of tensors.

    Returns:
        Whether an old PyTorch wrote it.

    Raises:
        UnsafeError: it holds what can run code, or more than its size says.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        reader = PT2ArchiveReader(file)
    except RuntimeError:
        # torch.export.load takes it for an archive of an old PyTorch, which it reads with zipfile.
        with zipfile.ZipFile(file) as archive:
            _check_sizes("the archive", {i.filename: i.file_size for i in archive.infolist()}, size)
            for name in archive.namelist():
                if name == _OLD_PROGRAM:
                    _check_json(name, archive.read(name))
                elif name.startswith("serialized_"):
                    _check_pickle(name, archive.read(name))
        return True
    names = reader.get_file_names()
    # Records are found whatever the case of their names.
    if len({name.lower() for name in names}) < len(names):
        raise UnsafeError("the archive", "two records of one name")
    _check_sizes("the archive", _sizes(reader.archive_file), size)
    for name in names:
        folder, lower = name[: name.rfind("/") + 1], name.lower()
        if lower.startswith(_COMPILED) or lower.endswith((".so", ".dll", ".dylib")):
            raise UnsafeError(name, "compiled code")
        if lower.endswith("_config.json"):
            for entry in _check_json(name, reader.read_bytes(name))["config"].values():
                _check_payload(name, folder, entry, reader)
        elif lower.startswith(constants.MODELS_DIR):
            _check_json(name, reader.read_bytes(name))
        elif lower.endswith(".pt"):
            _check_pickle(name, reader.read_bytes(name))
    return False


def _sizes(reader: Any) -> dict[str, int]:
    return {name: reader.get_record_size(name) for name in reader.get_all_records()}


def _check_sizes(where: str, sizes: dict[str, int], size: int) -> None:
    """PyTorch stores without compression: what unpacks to more than the file is no such file."""
    if sum(sizes.values()) > size:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UnsafeError(where, f"{size} bytes unpack to {sum(sizes.values())}, see {largest}")


def _check_payload(where: str, folder: str, entry: dict[str, Any], reader: Any) -> None:
    name = entry["path_name"]
    if not _FILE_NAME.fullmatch(name):
        raise UnsafeError(where, f"the file name {short(repr(name), 100)}")
    if name.startswith(_PICKLED):
        raise UnsafeError(folder + name, "a pickled object")
    if entry["use_pickle"]:
        _check_pickle(folder + name, reader.read_bytes(folder + name))
    elif not reader.archive_file.get_record_size(folder + name) and all(
        size.get("as_int") != 0 for size in entry["tensor_meta"]["sizes"]
    ):
        raise UnsafeError(folder + name, "no bytes for a tensor with elements")


def _check_pickle(where: str, data: bytes) -> None:
    """Only what ``torch.load(weights_only=True)`` reads."""
    if not data:
        return
    try:
        _check_sizes(where, _sizes(torch._C.PyTorchFileReader(io.BytesIO(data))), len(data))
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    except UnsafeError:
        raise
    except Exception as error:  # whatever its pickle holds, it is none that torch.save writes
        reason = f"{type(error).__name__}: {first_line(error, 200)}"
        raise UnsafeError(where, f"no archive of tensors ({reason})") from error
    if unsafe:
        raise UnsafeError(where, f"a pickle that calls {', '.join(sorted(unsafe)[:3])}")


def _check_json(where: str, data: bytes) -> dict[str, Any]:
    """A program, or the settings of its tensors: every string by the key at which it stands."""
    document: dict[str, Any] = json.loads(data.decode("utf-8"))
    stack: list[tuple[str, Any, bool]] = [("", document, False)]
    while stack:
        key, value, of_node = stack.pop()
        if isinstance(value, str):
            if not _is_harmless(key, value, of_node):
                raise UnsafeError(where, f"{key} {short(repr(value), 200)}")
        elif isinstance(value, list):
            stack += [(key, item, of_node) for item in value]
        elif isinstance(value, dict):
            for name, item in value.items():
                if (key, name) in (("nodes", "metadata"), ("graph_module", "metadata")):
                    continue  # kept as text
                if (key, name) == ("", "guards_code"):
                    continue  # left out of the program
                if name in ("as_custom_obj", "custom_obj"):
                    raise UnsafeError(where, "an object of a class of its own")
                pattern = _NAMES.get(key, PLAIN)
                if not pattern.fullmatch(name) or not PLAIN.fullmatch(name):
                    raise UnsafeError(where, f"the name {short(repr(name), 200)}")
                stack.append((name, item, name != "graph" and (of_node or name == "nodes")))
    return document


def _is_harmless(key: str, text: str, of_node: bool) -> bool:
    if key in ("target", "as_operator"):
        return is_known_operator(text)
    if key == "expr_str":
        return is_arithmetic(text)
    if key in ("in_spec", "out_spec"):
        return is_plain_container(text, of_inputs=key == "in_spec")
    if key in ("name", "as_name", "forward_arg_names"):
        return not text or _IDENTIFIER.fullmatch(text) is not None
    if key in ("as_string", "as_strings") and of_node:
        return True
    return PLAIN.fullmatch(text) is not None
