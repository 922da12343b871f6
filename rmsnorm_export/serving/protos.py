"""Triton's ``ModelConfig``: its own protobuf definition, as text and back.

The definition comes with tritonclient, in a module that imports nothing but protobuf. Its package
``tritonclient.grpc`` does import grpc, whose extra pins protobuf below 7 (tritonclient 2.73), so
the module is loaded by its place.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from typing import Any

from google.protobuf import text_format

from rmsnorm_export.errors import BackendMissingError, Error, InputError
from rmsnorm_export.printable import one_line
from rmsnorm_export.system.packages import package_folders, pip_install

_MODULE = "tritonclient.grpc.model_config_pb2"


@functools.cache
def definitions() -> Any:
    """The generated module.

    Raises:
        BackendMissingError: tritonclient is not installed, or its module does not suit the
            installed protobuf.
    """
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    for folder in package_folders("tritonclient"):
        path = folder / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location("_rmsnorm_export_model_config_pb2", path)
        if not path.is_file() or spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        try:
            with warnings.catch_warnings():  # "one major version older than the runtime" is fine
                warnings.simplefilter("ignore")
                spec.loader.exec_module(module)
        except Exception as error:  # protobuf has classes of its own for versions
            raise BackendMissingError(
                "Triton's definition of a model configuration cannot be loaded.",
                found=f"tritonclient: {one_line(str(error), 300)}",
                fix="pip install -U tritonclient protobuf",
            ) from error
        return module
    raise BackendMissingError(
        "Packaging needs Triton's definition of a model configuration.",
        found="tritonclient is not installed",
        fix=pip_install("[triton]"),
    )


def config_text(config: Any, comment: str) -> str:
    """A ``ModelConfig`` as the text of a ``config.pbtxt``, parsed back and compared.

    Raises:
        Error: the text does not say what ``config`` says; that would be an error of this program.
    """
    text = f"# {one_line(comment)}\n{text_format.MessageToString(config)}"
    if parse_config(text, "config.pbtxt") != config:
        raise Error(
            "The configuration changed when it was read back.",
            found=f"model {config.name}",
            fix="please report this",
        )
    return text


def parse_config(text: str, shown: str) -> Any:
    """The ``ModelConfig`` that ``text`` says.

    Raises:
        InputError: it is none; ``shown`` names the file.
    """
    config = definitions().ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise InputError(
            "The configuration of the model in the repository cannot be read.",
            found=f"{shown}: {one_line(str(error), 300)}",
            fix="mend the file, or package with --force to write it anew",
        ) from error
    return config


def data_type_name(number: int) -> str:
    """``TYPE_FP32`` for 11."""
    return str(definitions().DataType.Name(number))
