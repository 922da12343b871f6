"""``config.pbtxt``: the model for the server, as text of Triton's model_config.proto."""

from __future__ import annotations

from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import MODEL_FILE, ServingBackend
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.errors import UsageError

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


def refuse_options(backend: ServingBackend, options: PackageOptions) -> None:
    """Refuse options of a configuration that stays as it is.

    Raises:
        UsageError: naming them.
    """
    names = ("max_batch", "kind") if backend == "tensorrt" else ("max_batch", "kind", "plugin")
    if given := [name for name in names if getattr(options, name) is not None]:
        what = "Options of the configuration were given for a further version."
        fix = "omit these options, edit config.pbtxt, or use --force to write it anew"
        raise UsageError(what, found=", ".join(given), fix=fix)


def config_text(
    name: str,
    subject: ServedModel,
    max_batch: int,
    options: PackageOptions,
    kernels: str,
) -> str:
    """Return the text of a ``config.pbtxt``.

    Every version in the folder is served: by default the server would serve the latest only, and
    a new version would take the place of the one that clients use.

    Args:
        name, subject: the model.
        max_batch: most requests in a batch; 0: none.
        options: of ``package``.
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
    for kind, items in zip(("input", "output"), subject.tensors, strict=True):
        for item in items:
            # The server knows no empty shape, so a scalar is reshaped from [1].
            dims = item.shape[1:] if max_batch else item.shape
            shape = f"dims: {[*dims]}" if dims else "dims: [1] reshape { }"
            named = f"name: {_quoted(item.name)} data_type: {item.dtype}"
            lines.append(f"{kind} {{ {named} {shape} }}")
    where = "KIND_CPU" if options.kind == "cpu" else "KIND_GPU"
    numbers = range(len(subject.profiles)) if subject.record is not None else ()
    # Without a list the server loads the first profile only.
    listed = "".join(f' profile: "{number}"' for number in numbers if len(numbers) > 1)
    lines.append(f"instance_group {{ kind: {where} count: 1{listed} }}")
    if max_batch:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_DELAY_US} }}")
    if kernels:
        lines.append(f"model_operations {{ op_library_filename: {_quoted(kernels)} }}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format: what is no plain ASCII as octal bytes."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{"".join(plain)}"'
