"""``config.pbtxt``, as text of Triton's model_config.proto, and the card of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

from google.protobuf.text_encoding import CEscape

from rmsnorm_export.deploy.packaged import MODEL_FILE, PackagedModel
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.printable import one_line

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


def config_text(name: str, subject: ServedModel, max_batch: int, kind: str, kernels: str) -> str:
    """Return the text of a ``config.pbtxt``.

    Every version in the folder is served: by default the server would serve the latest only, and
    a new version would take the place of the one that clients use.

    Args:
        name, subject: the model.
        max_batch: most requests in a batch; 0: none.
        kind: ``gpu`` or ``cpu``.
        kernels: where the server finds a library of kernels for ONNX Runtime, or "".
    """
    lines = [
        "# Made by rmsnorm-export package.",
        f"name: {_quoted(name)}",
        f"backend: {_quoted(subject.backend)}",
        f"default_model_filename: {_quoted(MODEL_FILE[subject.backend])}",
        f"max_batch_size: {max_batch}",
        "version_policy { all { } }",
    ]
    for way, items in zip(("input", "output"), subject.tensors, strict=True):
        for item in items:
            # The server knows no empty shape, so a scalar is reshaped from [1].
            dims = item.shape[1:] if max_batch else item.shape
            shape = f"dims: {[*dims]}" if dims else "dims: [1] reshape { }"
            lines.append(f"{way} {{ name: {_quoted(item.name)} data_type: {item.dtype} {shape} }}")
    numbers = range(len(subject.profiles)) if subject.record is not None else ()
    # Without a list the server loads the first profile only.
    listed = "".join(f' profile: "{number}"' for number in numbers if len(numbers) > 1)
    lines.append(f"instance_group {{ kind: KIND_{kind.upper()} count: 1{listed} }}")
    if max_batch:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_DELAY_US} }}")
    if kernels:
        lines.append(f"model_operations {{ op_library_filename: {_quoted(kernels)} }}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format."""
    return f'"{CEscape(text.encode("utf-8", "surrogateescape"), as_utf8=False)}"'


def card(versions: Sequence[PackagedModel]) -> str:
    """Return the card of a model, ``README.md``; its tensors are those of the last version."""
    model = versions[-1]
    loads = [version.load for version in versions if version.load]
    template = resources.files(__package__).joinpath("card.md").read_text("utf-8")
    return template.format(
        name=model.name,
        backend=model.backend,
        batching=f"batched, up to {model.max_batch}" if model.max_batch else "not batched",
        tensors=_rows(
            (way, f"`{item.name}`", item.dtype, str(list(item.shape)))
            for way, items in (("input", model.inputs), ("output", model.outputs))
            for item in items
        ),
        versions=_rows(
            (str(one.version), f"`{one.source}`", one.source_sha256, one.made, one.answers)
            for one in versions
        ),
        server=" ".join(["tritonserver --model-repository=/models", *loads[-1:]]),
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of a table, without what Markdown or HTML would act on."""
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    code = text[:1] == "`"
    plain = one_line(text.strip("`"), 300).replace("`", "").replace("|", "\\|")
    return f"`{plain}`" if code else plain.replace("<", "&lt;")
