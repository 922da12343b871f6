"""``config.pbtxt``: the model for the server, as a ``ModelConfig`` of Triton's definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.printable import quoted
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.serving.batching import RequestShapes
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.serving.protos import data_type_name, definitions
from rmsnorm_export.serving.result import PackageRecord, ServedTensor, ServingBackend
from rmsnorm_export.serving.served_model import MODEL_FILE, ServedModel, triton_type

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


def make_config(
    name: str,
    subject: ServedModel,
    options: PackageOptions,
    max_batch: int,
    samples: Sequence[RequestShapes] = (),
    kernels: str = "",
) -> Any:
    """The ``ModelConfig`` of a model.

    ``samples`` are the requests to warm up with; ``kernels`` is the path that the server finds a
    library of kernels for ONNX Runtime at, "" without one.

    Every version in the folder is served: by default the server would serve the latest only, and
    a new version would take the place of the one that clients use.
    """
    config = definitions().ModelConfig()
    config.name = name
    config.backend = subject.backend
    config.default_model_filename = MODEL_FILE[subject.backend]
    config.max_batch_size = max_batch
    config.version_policy.all.SetInParent()
    for item in subject.inputs:
        _fill(config.input.add(), item, subject.backend, max_batch)
    for item in subject.outputs:
        _fill(config.output.add(), item, subject.backend, max_batch)
    kinds = definitions().ModelInstanceGroup.Kind
    group = config.instance_group.add(count=options.instances or 1)
    group.kind = kinds.Value("KIND_CPU" if options.kind == "cpu" else "KIND_GPU")
    if len(subject.profiles) > 1:  # without a list the server loads the first one only
        group.profile.extend(str(number) for number in range(len(subject.profiles)))
    if max_batch and options.dynamic_batching is not False:
        delay = options.queue_delay_us
        config.dynamic_batching.preferred_batch_size.extend(options.preferred_batch_sizes)
        config.dynamic_batching.max_queue_delay_microseconds = (
            QUEUE_DELAY_US if delay is None else delay
        )
    if kernels:
        config.model_operations.op_library_filename.append(kernels)
    _warm_up(config, samples)
    return config


def served(item: Declared, backend: ServingBackend) -> ServedTensor:
    """``item`` as clients see it."""
    shape = tuple(size if isinstance(size, int) else -1 for size in item.shape or ())
    return ServedTensor(item.name, triton_type(backend, item.name, item.dtype), shape)


def _fill(entry: Any, item: Declared, backend: ServingBackend, max_batch: int) -> None:
    """One input or output; the server knows no empty shape, so it is reshaped from [1]."""
    tensor = served(item, backend)
    entry.name = tensor.name
    entry.data_type = definitions().DataType.Value(tensor.dtype)
    dims = tensor.shape[1:] if max_batch else tensor.shape
    entry.dims.extend(dims or (1,))
    if not dims:
        entry.reshape.SetInParent()


def _warm_up(config: Any, samples: Sequence[RequestShapes]) -> None:
    """Requests that the server answers before it takes any from clients.

    Floats are random; integers are zeros, for random ones would be no valid indices.
    """
    floats = {f"TYPE_{name}" for name in ("FP16", "FP32", "FP64", "BF16")}
    for label, shapes in zip(("usual", "largest"), samples, strict=False):
        request = config.model_warmup.add(name=label, batch_size=1)
        for entry in config.input:
            shape = shapes[entry.name]
            if config.max_batch_size:
                request.batch_size, shape = shape[0], shape[1:]
            data = request.inputs[entry.name]
            data.data_type = entry.data_type
            data.dims.extend(shape or (1,))
            if data_type_name(entry.data_type) in floats:
                data.random_data = True
            else:
                data.zero_data = True


def check_agreement(old: Any, new: Any) -> None:
    """A new version has the inputs and outputs that the configuration promises to clients.

    Raises:
        InputError: naming the first that differs.
    """
    for what in ("input", "output"):
        before = {entry.name: entry for entry in getattr(old, what)}
        after = {entry.name: entry for entry in getattr(new, what)}
        for name in sorted(before.keys() | after.keys()):
            if name in before and name in after and _same_entry(before[name], after[name]):
                continue
            raise InputError(
                f"The new version has another {what} than the model in the repository.",
                found=f"{quoted(name)}: {_entry_text(before.get(name))} in {old.name}/config.pbtxt,"
                f" {_entry_text(after.get(name))} in the new version",
                fix="package it under another name; the versions of a model share one"
                " configuration",
            )
    if (old.backend or old.platform) not in (new.backend, _PLATFORMS[new.backend]):
        raise InputError(
            "The new version runs in another backend than the model in the repository.",
            found=f"{old.backend or old.platform} before, {new.backend} now",
            fix="package it under another name",
        )


def check_others(record: PackageRecord, version: int, subject: ServedModel) -> None:
    """A configuration that is written anew still suits the versions that are kept.

    Raises:
        InputError: one of them has other inputs or outputs, or another backend.
    """
    others = [item.version for item in record.versions if item.version != version]
    before = {(item.name, item.dtype, item.shape) for item in (*record.inputs, *record.outputs)}
    tensors = [served(item, subject.backend) for item in (*subject.inputs, *subject.outputs)]
    now = {(item.name, item.dtype, item.shape) for item in tensors}
    if not others or (before == now and record.backend == subject.backend):
        return
    differs = sorted(before ^ now)
    raise InputError(
        "The versions that are kept have other inputs and outputs, or another backend.",
        found=f"versions {', '.join(map(str, others))}: "
        + (quoted(differs[0][0]) if differs else f"{record.backend}, not {subject.backend}"),
        fix="package it under another name; the versions of a model share one configuration",
    )


_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}


def _same_entry(a: Any, b: Any) -> bool:
    same = a.data_type == b.data_type and list(a.dims) == list(b.dims)
    return same and a.HasField("reshape") == b.HasField("reshape") and a.reshape == b.reshape


def _entry_text(entry: Any) -> str:
    return "missing" if entry is None else f"{data_type_name(entry.data_type)} {list(entry.dims)}"


def check_serving(subject: ServedModel, max_batch: int, options: PackageOptions) -> None:
    """The options fit each other and the model.

    Raises:
        UsageError: naming the option.
    """
    preferred, dynamic_batching = options.preferred_batch_sizes, options.dynamic_batching
    if options.kind == "cpu" and subject.backend == "tensorrt":
        raise UsageError(
            "An engine runs on a GPU only.", found="--kind cpu", fix="leave --kind away"
        )
    if not max_batch and (dynamic_batching or preferred):
        raise UsageError(
            "Requests cannot be joined into batches.",
            found="batching was asked for, and the largest batch is 0",
            fix="export the model with one dynamic leading axis in all inputs and outputs",
        )
    if preferred and dynamic_batching is False:
        raise UsageError(
            "Preferred batch sizes need dynamic batching.",
            found=", ".join(map(str, preferred)),
            fix="leave one of the two away",
        )
    if bad := [size for size in preferred if not 1 <= size <= max_batch]:
        raise UsageError(
            "A preferred batch size does not fit.",
            found=f"{bad[0]}, the largest batch is {max_batch}",
            fix=f"give sizes from 1 to {max_batch}",
        )
