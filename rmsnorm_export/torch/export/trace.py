"""A PyTorch module as ONNX, every norm spelled out: `torch.onnx.export`, tidied up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.system.packages import pip_install

try:
    import onnxscript as _onnxscript  # noqa: F401 (torch.onnx needs it)
    import torch
    from torch.utils import _pytree as pytree
except ModuleNotFoundError as error:
    raise BackendMissingError(
        "Exporting from PyTorch needs packages that are not installed.",
        found=f"no package {error.name}",
        fix=pip_install("[torch]"),
    ) from error

from rmsnorm_export.torch.export import weights as export_weights
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.export.clean import check_types, tidy
from rmsnorm_export.torch.export.failure import explain
from rmsnorm_export.torch.export.tables import quick_tables
from rmsnorm_export.torch.export.translate import translation_table

if TYPE_CHECKING:
    from rmsnorm_export.torch_options import ExportOptions

OLDEST_OPSET = 18
"""PyTorch's translations are written for opset 18; below it they would be converted down."""

EXPORTING, TIDYING = "exporting to ONNX", "tidying the graph"

Input = TypeVar("Input")


def trace(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
    tell: Callable[[str], None],
) -> tuple[ir.Model, str]:
    """Return a module as plain ONNX in memory, every norm as the module computes it.

    This is what `rmsnorm_export.export` sees; the weights are still the module's.

    ``tell`` is called with the name of each stage when it begins.

    Returns:
        The model, and what PyTorch's exporter printed, logged and warned of.

    Raises:
        UsageError, InputError: as there.
    """
    positional, named = _checked_arguments(module, args, options.kwargs)
    dynamic_shapes, state = options.dynamic_shapes, options.state
    _check_axes(dynamic_shapes, (positional, named))
    absent = export_weights.missing(module)
    export_weights.check_state(absent, state)
    tell(EXPORTING)
    with collected() as traced:
        try:
            with inference(module), export_weights.stand_ins(module, absent), quick_tables():
                program = torch.onnx.export(
                    module,
                    positional,
                    kwargs=named or None,
                    dynamo=True,
                    opset_version=options.opset,
                    dynamic_shapes=dynamic_shapes,
                    custom_translation_table=translation_table(),
                    optimize=False,
                )
        except Exception as error:
            raise explain(error, module, positional, named) from error
    assert program is not None
    model = program.model
    tell(TIDYING)
    _check_dynamic(model, dynamic_shapes)
    _rename(model.graph.inputs, options.input_names, "input_names")
    given = options.output_names
    _rename(
        model.graph.outputs, given or _output_names(program.exported_program, model), "output_names"
    )
    with collected() as tidied:
        export_weights.attach(model, absent, state)
        tidy(model)
        check_types(model)
    return model, "\n".join([*traced, *tidied])


def _checked_arguments(
    module: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(module, torch.jit.ScriptModule) or not isinstance(
        module, torch.nn.Module | torch.export.ExportedProgram
    ):
        raise UsageError(
            "Only a torch.nn.Module or a torch.export.ExportedProgram can be exported.",
            found=f"{type(module).__module__}.{type(module).__qualname__}",
            fix="put the computation into the forward of a torch.nn.Module",
        )
    if not isinstance(args, tuple | list):
        raise UsageError(
            "The argument args is the sequence of the module's positional inputs.",
            found=type(args).__name__,
            fix="pass a tuple, e.g. (input_ids,)",
        )
    return tuple(args), dict(kwargs or {})


@contextlib.contextmanager
def inference(module: object) -> Iterator[None]:
    """In evaluation mode and without gradients; every submodule's mode is restored."""
    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    modes = [child.training for child in modules]
    for child in modules:
        child.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in zip(modules, modes, strict=True):
            child.training = mode


def _output_names(program: torch.export.ExportedProgram | None, model: ir.Model) -> list[str]:
    """Names for the outputs: the keys of a dictionary (``logits``), else ``output``, ``output_1``.

    Empty when the graph has other outputs than the program returns.
    """
    spec = None if program is None else program.call_spec.out_spec
    count = len(model.graph.outputs)
    if spec is None or spec.num_leaves != count:
        return []
    built = pytree.tree_unflatten(list(range(count)), spec)
    keys: list[str] = []
    if isinstance(built, Mapping):
        for key, value in built.items():
            leaves = pytree.tree_leaves(value)
            keys += [str(key) if len(leaves) == 1 else f"{key}_{i}" for i in range(len(leaves))]
    else:
        keys = ["output" if i == 0 else f"output_{i}" for i in range(count)]
    return keys if len(keys) == count else []


def _rename(values: Sequence[ir.Value], names: Sequence[str] | None, option: str) -> None:
    """Give the values these names; others that have one of them make way when names are fixed.

    Raises:
        UsageError: the names are not as many as the values, or not unique.
    """
    if not names:
        return
    if len(names) != len(values) or len(set(names)) != len(names):
        have = ", ".join(str(value.name) for value in values)
        raise UsageError(
            f"{option} must give each {option.split('_')[0]} of the graph its own name.",
            found=f"{names!r} for {len(values)}: {have}",
            fix=f"give {len(values)} different names, in that order",
        )
    for value, name in zip(values, names, strict=True):
        # An output that is an input keeps that name.
        if option == "input_names" or value.producer() is not None:
            value.name = name


def _check_axes(dynamic_shapes: Any, arguments: Any) -> None:
    """Every axis in ``dynamic_shapes`` is one that its input has.

    Raises:
        UsageError: naming the input and the axis.
    """
    known = isinstance(dynamic_shapes, Mapping | list | tuple | None)
    wrong = "" if known else repr(dynamic_shapes)
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if hasattr(leaf, "shape")]
    for number, (tensor, axes) in enumerate(_asked_axes(known and dynamic_shapes, tensors)):
        for axis in axes:
            if not 0 <= axis < len(tensor.shape):
                wrong = f"axis {axis} of input {number}, of shape {list(tensor.shape)}"
    if wrong:
        raise UsageError(
            "The argument dynamic_shapes says which axes of which input are dynamic.",
            found=wrong,
            fix='pass a mapping or a tuple, e.g. {"x": {0: "batch"}}',
        )


def _check_dynamic(model: ir.Model, dynamic_shapes: Any) -> None:
    """Every dimension that was asked to be dynamic is symbolic in the graph.

    PyTorch fixes a dimension on which the module's Python code depends without an error.

    Raises:
        UsageError: naming the input, the axis and the size at which the module fixes it.
    """
    for value, axes in _asked_axes(dynamic_shapes, model.graph.inputs):
        for axis, asked in axes.items():
            dynamic = isinstance(asked, str | torch.export.Dim) or asked == torch.export.Dim.DYNAMIC
            if not dynamic or value.shape is None or axis >= len(value.shape):
                continue
            size = value.shape[axis]
            if isinstance(size, int):
                name = asked if isinstance(asked, str) else getattr(asked, "__name__", "")
                raise UsageError(
                    "The module fixes the size of a dimension that was asked to be dynamic.",
                    found=f"input {value.name!r}, axis {axis} ({name or 'dynamic'}): {size}",
                    fix="give it a fixed size, or change the module so that its code does not "
                    "depend on that size",
                )


def _asked_axes(
    dynamic_shapes: Any, inputs: Sequence[Input]
) -> Iterator[tuple[Input, dict[int, Any]]]:
    """Each input and what is asked of its axes; none where it cannot be told which is whose."""
    leaves, _ = pytree.tree_flatten(dynamic_shapes, is_leaf=_is_axes)
    if dynamic_shapes and len(leaves) == len(inputs):
        for value, leaf in zip(inputs, leaves, strict=True):
            yield value, leaf if isinstance(leaf, dict) else dict(enumerate(leaf or ()))


def _is_axes(value: object) -> bool:
    """A leaf of ``dynamic_shapes``: the axes of one input."""
    if isinstance(value, dict):
        return all(isinstance(key, int) for key in value)
    if isinstance(value, list | tuple):
        return all(not isinstance(item, list | tuple | dict) for item in value)
    return value is None
