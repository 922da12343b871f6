"""``ids=1x1,4x128,8x2048``: the ranges of a model's inputs, as TensorRT takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmsnorm_export.runtime.input_sizes import Declared, InputSizes
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, ShapesByName
from rmsnorm_export.tensorrt.engine.result import EngineProfile, InputRange


def make_profiles(
    inputs: Sequence[Declared], shapes: Shapes | None, dims: Dims | None = None
) -> tuple[EngineProfile, ...]:
    """The optimization profiles that are asked for.

    Args:
        inputs: of the model.
        shapes: of one profile, as text or by input; or a sequence of these, one for each profile.
        dims: sizes by name of a dimension, which all profiles have; see ``runtime.sizes``.

    Raises:
        UsageError: an input or dimension that the model does not have, or one with dynamic sizes
            that has no range; a rank or a fixed size that differs; sizes out of order; a dimension
            that has two ranges.
    """
    each: Sequence[str | ShapesByName | None]
    each = [shapes] if shapes is None or isinstance(shapes, str | Mapping) else shapes or [None]
    sizes = InputSizes(inputs, RANGES)
    profiles = []
    for one in each:
        low, usual, high = (at for _, at in sizes.points(one, dims))
        profiles.append(
            EngineProfile(
                tuple(
                    InputRange(item.name, item.dtype, *(at[item.name] for at in (low, usual, high)))
                    for item in inputs
                )
            )
        )
    return tuple(profiles)
