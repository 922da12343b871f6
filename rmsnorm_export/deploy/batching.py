"""The largest batch: how many requests the server may join.

Triton's rule: with ``max_batch_size`` above 0 the leading axis of every input and output is the
batch, and is omitted in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.sizes import Declared

DEFAULT_MAX_BATCH = 8
"""Where nothing says more; Triton's own default, for models that it configures itself, is 4."""

RequestShapes = Mapping[str, tuple[int, ...]]
Profile = Sequence[RequestShapes]
"""Shapes of the smallest, the usual and the largest request."""


def decide_batch(
    tensors: Sequence[Declared], asked: int | None, profiles: Sequence[Profile]
) -> tuple[int, str]:
    """Return the largest batch, and where there is none, why.

    It is as asked, else the largest of the profiles, else 8; 0 without a batch axis.

    Raises:
        UsageError: a batch was asked for and the model has no batch axis, or its profiles end
            below it.
    """
    if asked == 0:
        return 0, ""
    problem = _no_batch_axis(tensors, named=asked is None)
    leading = [[{shape[:1] for shape in one.values()} for one in profile] for profile in profiles]
    largest = min((max(sizes)[0] for *_, sizes in leading if max(sizes)), default=None)
    if not problem and any(len(sizes) > 1 for *_, sizes in leading):
        problem = "its inputs have leading axes of several sizes in the optimization profile"
    elif not problem and any(least > (1,) for sizes, *_ in leading for least in sizes):
        problem = "its smallest batch is larger than 1, so that a request alone does not fit"
    if problem and asked is not None:
        what = "The server cannot join requests for this model into batches."
        fix = "export it with a dynamic leading axis in all inputs and outputs, or omit --max-batch"
        raise UsageError(what, found=problem, fix=fix)
    if asked is not None and largest is not None and asked > largest:
        found = f"--max-batch {asked}, the largest shape has {largest}"
        fix = f"give {largest} or less, or larger shapes; an engine has to be built for them"
        raise UsageError("The largest batch is more than the shapes allow.", found=found, fix=fix)
    return (0, problem) if problem else (asked or largest or DEFAULT_MAX_BATCH, "")


def _no_batch_axis(tensors: Sequence[Declared], *, named: bool) -> str:
    """Return why the leading axes are no batch, or ""; ``named``: one without a name is none."""
    leading: dict[str, str] = {}
    for tensor in tensors:
        shape = tensor.shape or ()
        if not shape or isinstance(shape[0], int):
            return f"{tensor.text()} is a scalar, or its leading axis is fixed"
        if shape[0] is None and named:
            return f"the leading axis of {tensor.text()} has no name to tell that it is the batch"
        if shape[0] is not None:
            leading.setdefault(shape[0], tensor.text())
    if len(leading) > 1:
        return f"the leading axes differ: {'; '.join(list(leading.values())[:2])}"
    return "" if tensors else "it has no inputs and outputs"
