"""``config.pbtxt``: the model for the server, as text of Triton's model_config.proto."""

from __future__ import annotations

from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import MODEL_FILE, ServingBackend
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.errors import UsageError

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


_SHARED = (
    "max_batch", "dynamic_batching", "preferred_batch_sizes", "queue_delay_us", "instances", "kind",
)  # fmt: skip
"""What stands in config.pbtxt, which all versions of a model share."""


def check_serving(backend: ServingBackend, max_batch: int, options: PackageOptions) -> None:
    """Refuse options that do not fit each other or the model.

    Raises:
        UsageError: naming the option.
    """
    preferred, joined = options.preferred_batch_sizes, options.dynamic_batching
    sizes = f"the largest batch is {max_batch}"
    for wrong, what, found in (
        (options.kind == "cpu" and backend == "tensorrt", "An engine runs on a GPU only.", "cpu"),
        (not max_batch and (joined or preferred), "Requests cannot be joined into batches.", sizes),
        (preferred and joined is False, "Preferred sizes need dynamic batching.", str(preferred)),
        (
            any(size > max_batch for size in preferred),
            "A preferred batch size is too large.",
            sizes,
        ),
    ):
        if wrong:
            raise UsageError(what, found=found, fix="omit the option, or see --max-batch")


def refuse_options(backend: ServingBackend, options: PackageOptions) -> None:
    """Refuse options of a configuration that stays as it is.

    Raises:
        UsageError: naming them.
    """
    names = _SHARED if backend == "tensorrt" else (*_SHARED, "plugin")
    if given := [name for name in names if getattr(options, name) not in (None, (), [])]:
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
    lines.append(f"instance_group {{ kind: {where} count: {options.instances or 1}{listed} }}")
    if max_batch and options.dynamic_batching is not False:
        delay = QUEUE_DELAY_US if options.queue_delay_us is None else options.queue_delay_us
        preferred = list(options.preferred_batch_sizes)
        sizes = f"preferred_batch_size: {preferred} " if preferred else ""
        lines.append(f"dynamic_batching {{ {sizes}max_queue_delay_microseconds: {delay} }}")
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
