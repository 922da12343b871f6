"""Whether the server may join requests into batches, and the shapes of the requests it warms with.

Triton's rule: with ``max_batch_size`` above 0 the leading axis of every input and output is the
batch, and is left out of the configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.input_sizes import Declared, fill, is_fixed, sized, symbol_of
from rmsnorm_export.serving.served_model import ServedModel
from rmsnorm_export.tensorrt.engine.result import EngineProfile

DEFAULT_MAX_BATCH = 8
"""Where nothing says more; Triton's own default, for models that it configures itself, is 4."""

RequestShapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Batching:
    """What was decided; with a ``max_batch`` of 0 requests are not joined, for ``reason``. The user
    ``asked`` for it, or not."""

    max_batch: int
    reason: str = ""
    asked: bool = False


def decide(
    subject: ServedModel, max_batch: int | None, profiles: Sequence[EngineProfile]
) -> Batching:
    """The largest batch: as asked, else the largest of the profiles, else 8; 0 without a batch
    axis.

    Raises:
        UsageError: a batch was asked for and the model has no batch axis, or its profiles end
            below it.
    """
    if max_batch is not None and max_batch < 0:
        raise UsageError(
            "The largest batch is negative.", found=str(max_batch), fix="give 0 or more"
        )
    if max_batch == 0:
        return Batching(0, "it was asked for", asked=True)
    tensors = (*subject.inputs, *subject.outputs)
    problem = _no_batch_axis(tensors, strict=max_batch is None)
    largest = min((_largest_leading(profile) for profile in profiles), default=None)
    if not problem and largest == 0:
        problem = "its inputs have leading axes of several sizes in the optimization profile"
    if not problem and (least := max(map(_smallest_leading, profiles), default=1)) > 1:
        problem = f"its smallest batch is {least}, so that a request alone does not fit"
    if problem and max_batch is not None:
        raise UsageError(
            "The server cannot join requests for this model into batches.",
            found=problem,
            fix="export it with one dynamic leading axis in all inputs and outputs, or leave"
            " --max-batch away",
        )
    if problem:
        return Batching(0, problem)
    if max_batch is None:
        return Batching(largest or DEFAULT_MAX_BATCH)
    if largest is not None and max_batch > largest:
        raise UsageError(
            "The largest batch is more than the shapes allow.",
            found=f"--max-batch {max_batch}, the largest shape has {largest}",
            fix=f"give {largest} or less, or larger shapes; an engine has to be built for them",
        )
    return Batching(max_batch, asked=True)


def _no_batch_axis(tensors: Sequence[Declared], *, strict: bool) -> str:
    """Why the leading axes are no batch, or "". ``strict``: an axis without a name is none."""
    names: dict[str, str] = {}
    for tensor in tensors:
        shape = tensor.shape or ()
        if not shape:
            return f"{tensor.text()} is a scalar"
        if isinstance(shape[0], int):
            return f"the leading axis of {tensor.text()} is fixed"
        if shape[0] is None and strict:
            return f"the leading axis of {tensor.text()} has no name to tell that it is the batch"
        if shape[0] is not None:
            names.setdefault(shape[0], tensor.text())
    if len(names) > 1:
        return f"the leading axes differ: {'; '.join(list(names.values())[:2])}"
    return "" if tensors else "it has no inputs and outputs"


def _largest_leading(profile: EngineProfile) -> int:
    """The largest leading size of a profile; 0 when its inputs differ in it, or have none."""
    sizes = {item.max[0] if item.max else 0 for item in profile.inputs}
    return sizes.pop() if len(sizes) == 1 else 0


def _smallest_leading(profile: EngineProfile) -> int:
    return max((item.min[0] for item in profile.inputs if item.min), default=1)


def request_shapes(
    inputs: Sequence[Declared],
    max_batch: int,
    profile: EngineProfile | None,
    sizes: Sequence[int],
) -> tuple[RequestShapes, ...]:
    """Shapes of a usual request and of the largest batch; one entry where both are the same.

    They are those of the profile; without one ``sizes`` are taken, see ``dimensions.fill``.
    """
    if profile is not None:
        usual = {item.name: item.opt for item in profile.inputs}
        largest = {item.name: item.max for item in profile.inputs}
        if max_batch:
            usual = {k: (min(v[0], max_batch), *v[1:]) for k, v in usual.items()}
            largest = {k: (max_batch, *v[1:]) for k, v in largest.items()}
    else:
        usual = _of_sizes(inputs, 1, sizes)
        largest = _of_sizes(inputs, max_batch, sizes) if max_batch else usual
    return (usual,) if usual == largest else (usual, largest)


def _of_sizes(inputs: Sequence[Declared], batch: int, sizes: Sequence[int]) -> RequestShapes:
    """One size per name; the leading dynamic axis is the batch."""
    declared = {item.name: item.shape or () for item in inputs}
    leading = [shape[0] for shape in declared.values() if shape and not is_fixed(shape[0])]
    known = {symbol_of(size, 0): batch for size in leading}
    fill(known, declared.values(), sizes)
    return {name: sized(shape, known) or () for name, shape in declared.items()}
