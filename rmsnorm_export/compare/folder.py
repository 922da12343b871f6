"""Two folders of graphs against each other, component by component."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import keywords
from rmsnorm_export.runtime.sizes import ONE_POINT

if TYPE_CHECKING:
    from rmsnorm_export.graph.bundle import Bundle


def verify_folders(
    a: Bundle, b: Bundle, options: VerifyOptions, compare: Callable[..., Verification]
) -> Verification:
    """Every component of ``a`` against that of the same name in ``b``, on random inputs of its own.

    Args:
        a, b: the folders.
        options: of ``verify``.
        compare: ``verify`` for two files.

    Returns:
        One comparison, in which an output is called ``component: name``.

    Raises:
        UsageError: the folders have other components, or inputs are given.
        InputError, VerificationError, BackendMissingError: as ``verify``.
    """
    if options.inputs is not None:
        raise UsageError(
            "The components of a folder have inputs of their own.",
            found="inputs, and two folders",
            fix="omit them, or compare the file of one component",
        )
    if a.files.keys() != b.files.keys():
        raise UsageError(
            "The folders have different components.",
            found=f"{', '.join(a.files)}; and {', '.join(b.files)}",
            fix="compare two exports of one model, with the same options",
        )
    parts: dict[str, Verification] = {}
    for name, (shapes, dims) in a.sizes(options.shapes, options.dims, ONE_POINT).items():
        own = dataclasses.replace(options, shapes=shapes, dims=dims)
        parts[name] = compare(a.files[name], b.files[name], **keywords(own))
    one = next(iter(parts.values()))
    failed = {name: part for name, part in parts.items() if not part.passed}
    firsts = (part.first_difference for part in parts.values())
    return dataclasses.replace(
        one,
        passed=not failed,
        reason="; ".join(f"{name}: {part.reason}" for name, part in failed.items()),
        outputs=tuple(
            dataclasses.replace(output, name=f"{name}: {output.name}")
            for name, part in parts.items()
            for output in part.outputs
        ),
        inputs=tuple(f"{name}: {text}" for name, part in parts.items() for text in part.inputs),
        notes=tuple(f"{name}: {note}" for name, part in parts.items() for note in part.notes),
        first_difference=next(filter(None, firsts), None),
        not_run="; ".join(part.not_run for part in parts.values() if part.not_run),
    )
