"""What ``export.json`` says of how a graph is called, written anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import first_line, short
from rmsnorm_export.torch.dtypes import FLOATS


def checked_metadata(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers' runner needs to call a graph.

    Args:
        name: of the graph, for errors.
        metadata: as the folder is read, which checks what it says of outputs.

    Raises:
        InputError: it is not built as transformers builds it.
    """
    try:
        dtype, outputs = metadata["export_dtype"], metadata["out_spec"]
        constants = [[position, value] for position, value in metadata.get("out_constants") or ()]
        if dtype not in FLOATS or not isinstance(outputs, str):
            raise ValueError("it lacks the type of its weights, or its outputs")
        for position, value in constants:
            if type(position) is not int or not isinstance(value, bool | int | float | str | None):
                raise ValueError("an output that is no tensor is none of a number, text or nothing")
        inputs: dict[str, Any] = {str(key): {} for key in metadata.get("kwargs") or ()}
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            "The manifest of the export does not say how its graphs are called.",
            found=f"{short(name)}: {first_line(error)}",
            fix="export the model again; or compare the components one by one, without --generate",
        ) from error
    return {
        "export_dtype": dtype,
        "kwargs": inputs,
        "out_spec": outputs,
        "out_constants": constants,
    }
