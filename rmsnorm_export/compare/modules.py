"""Values of an exported graph that are the results of PyTorch modules.

``torch.onnx.export(dynamo=True)`` writes on each node the modules that it came from. A value is
the result of a module where it is the only one of its values that nodes elsewhere read. What may
hide another one is left out: a reader that tells no module, and, in a graph with fused norms,
which may hold the Add that ended a module, all modules but those without children.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from rmsnorm_export.compare.flow import SKIP
from rmsnorm_export.lower.builder import REPLACES
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.match import name_scopes

if TYPE_CHECKING:
    import torch

_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""What PyTorch 2.13 writes where it lost track."""

_OPERANDS = 2
"""The first inputs of ``SKIP`` are the operands of the Add that it holds."""

_SHAPE_ONLY = ("Shape", "Size")


def module_results(model: ir.Model, module: torch.nn.Module) -> dict[str, str]:
    """Value -> path of the module whose result it is.

    Args:
        model: exported from ``module``.
        module: whose submodules are looked for.
    """
    known = {path: child for path, child in module.named_modules() if path}
    fused = any(_is_fused(node) for node in model.graph)
    leaving, spoiled = _values_leaving(model)
    paths: dict[str, str] = {}
    for path, values in leaving.items():
        child = known.get(path)
        if child is None or path in spoiled or len(values) != 1:
            continue
        value = next(iter(values))
        if fused and not _ends_module(value, child):
            continue
        # One value may leave several modules, one inside the other: the innermost is told.
        if value.name and len(path) > len(paths.get(value.name, "")):
            paths[value.name] = path
    return paths


def _values_leaving(model: ir.Model) -> tuple[dict[str, set[ir.Value]], set[str]]:
    """By path the values that nodes outside the module read, and paths where that is uncertain."""
    scopes = {node: _modules_around(node) for node in model.graph}
    outputs = set(model.graph.outputs)
    leaving: dict[str, set[ir.Value]] = {}
    spoiled: set[str] = set()
    for node, own in scopes.items():
        # The sum of a fused norm came from an Add of a module that is not known any more.
        for value in node.outputs[:1] if node.op_type in SKIP else node.outputs:
            readers = [
                scopes.get(user) for user, _ in value.uses() if user.op_type not in _SHAPE_ONLY
            ]
            for path in own or ():
                if None in readers:
                    spoiled.add(path)
                elif value in outputs or any(path not in (reader or ()) for reader in readers):
                    leaving.setdefault(path, set()).add(value)
    return leaving, spoiled


def _ends_module(value: ir.Value, module: torch.nn.Module) -> bool:
    """In a graph with fused norms: no Add that a norm took with it can have ended this module."""
    if next(module.children(), None) is not None:
        return False
    added = any(user.op_type in SKIP and place < _OPERANDS for user, place in value.uses())
    producer = value.producer()
    own = producer is not None and _is_fused(producer)
    return own or not added or type(module).__module__.startswith("torch.nn.modules.")


def _is_fused(node: ir.Node) -> bool:
    return node.domain == DOMAIN or REPLACES in node.metadata_props or node.op_type in SKIP


def _modules_around(node: ir.Node) -> frozenset[str] | None:
    """Paths of the modules around a node, the whole model not counted; None where unknown."""
    module, _, op = node.name.rpartition("/") if node.name else ("", "", "")
    if _is_fused(node) and module and op.startswith(node.op_type):
        # Written by this package: the name is that of the norm, the scopes may be the Add's.
        parts = module.split(".")
        return frozenset(".".join(parts[: i + 1]) for i in range(len(parts)))
    scopes = name_scopes(node)
    if len(scopes) < 2 or _NO_MODULE in scopes:  # the last is the operation itself
        return None
    return frozenset(scope for scope in scopes[:-1] if scope)
