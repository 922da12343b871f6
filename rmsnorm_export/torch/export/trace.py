"""A PyTorch module as ONNX, every norm spelled out: `torch.onnx.export`, tidied up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import BackendMissingError, UsageError

try:
    import onnxscript as _onnxscript  # noqa: F401 (torch.onnx needs it)
    import torch
except ModuleNotFoundError as error:
    raise BackendMissingError(
        "Exporting from PyTorch needs packages that are not installed.",
        found=f"no package {error.name}",
        fix='pip install "rmsnorm-export[torch]"',
    ) from error

from rmsnorm_export.torch.export import names as export_names
from rmsnorm_export.torch.export import weights as export_weights
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.export.clean import check_types, tidy
from rmsnorm_export.torch.export.failure import explain
from rmsnorm_export.torch.export.translate import translation_table

if TYPE_CHECKING:
    import onnx_ir as ir

    from rmsnorm_export.rewrite.options import ExportOptions

OLDEST_OPSET = 18
"""PyTorch's translations are written for opset 18; below it they would be converted down."""

TIDYING = "tidying the graph"


def trace(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
    tell: Callable[[str], None],
) -> tuple[ir.Model, str]:
    """A module as plain ONNX in memory, every norm as the module computes it.

    This is what `rmsnorm_export.export` sees; the weights are still the module's.

    Args:
        module, args: as there.
        options: those of the norms and of the file do not matter yet.
        tell: called with the name of each stage when it begins.

    Returns:
        The model, and what PyTorch's exporter printed, logged and warned of.

    Raises:
        UsageError, InputError: as there.
    """
    positional, named = _checked_arguments(module, args, options.kwargs)
    dynamic_shapes, state = options.dynamic_shapes, options.state
    export_names.check_axes(dynamic_shapes, positional, named)
    absent = export_weights.missing(module)
    export_weights.check_state(absent, state)
    with collected(tell) as traced:
        try:
            with inference(module), export_weights.stand_ins(module, absent):
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
    export_names.check_dynamic(model, dynamic_shapes)
    export_names.check_names(options.input_names, "input_names", model.graph.inputs)
    export_names.check_names(options.output_names, "output_names", model.graph.outputs)
    with collected() as tidied:
        export_weights.attach(model, absent, state)
        tidy(model)
        check_types(model)
        if options.input_names:
            export_names.rename_values(model, model.graph.inputs, options.input_names)
        names = options.output_names or export_names.output_names(program.exported_program, model)
        export_names.rename_outputs(model, names)
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
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(
            "The argument kwargs is a mapping of input names to values.",
            found=type(kwargs).__name__,
            fix='pass a dictionary, e.g. {"input_ids": input_ids}',
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
