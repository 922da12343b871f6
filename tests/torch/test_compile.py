"""The operators in torch.compile, torch.export and opcheck."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import rmsnorm_export.torch as rt
from rmsnorm_export.op.spec import FLOAT, NormSpec
from rmsnorm_export.torch.operator.plan import NAMES, attributes_of
from tests.sample import crossed
from tests.torch.norm_cases import FORMS, case_of, spec_of, tensors

OPS = torch.ops.rmsnorm_export


def _call(spec: NormSpec):
    """Operator, positional operands and keyword arguments."""
    operands = tensors(case_of(spec, FLOAT, FLOAT, FLOAT))
    return getattr(OPS, NAMES[spec.kind]).default, tuple(operands.values()), attributes_of(spec)


@crossed(2, form=[*FORMS], trained=[False, True])
def test_opcheck(form, trained):
    operator, operands, attributes = _call(spec_of(form, 6))
    strided = tuple(v.mT.contiguous().mT if v.ndim > 1 else v for v in operands)
    for value in (*operands, *strided):
        value.requires_grad_(trained)
    torch.library.opcheck(operator, operands, attributes)
    if form in ("plain", "skip", "gated", "rotary"):
        torch.library.opcheck(operator, strided, attributes)
        torch.library.opcheck(operator, operands[:-2], attributes)


class _Block(torch.nn.Module):
    """One norm of each operator, among other things to fuse with."""

    def __init__(self, n: int, **attributes) -> None:
        super().__init__()
        self.skip = rt.RMSNorm(n, kind="SkipRMSNorm", bias=True, **attributes)
        self.plain = rt.RMSNorm(n, **attributes)
        self.gated = rt.RMSNorm(n, kind="GatedRMSNorm", **attributes)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, total = self.skip(x, x.sin())
        return self.gated(y * 2, x) + self.plain(total)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)
@pytest.mark.slow
def test_compiles_whole_with_gradients_and_dynamic_shapes(backend):
    """No graph break; the same numbers and gradients to the order of a sum; no recompilation.

    The graphs are those of either backend; by default none is compiled to machine code.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    module = _Block(111, epsilon_outside=True, scale_offset=1.0, scale_before_cast=True)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    compilations = []
    for rows in (3, 7):
        x = torch.randn(2, rows, 111)
        results = []
        for function in (module, compiled):
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            gradients = torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])
            results.append((y, *gradients))
        for right, value in zip(*results, strict=True):
            # Two norms in a row, sums of 111 terms: some hundred roundings of the largest term.
            bound = 256 * 2.0**-24 * right.abs().max().item()
            torch.testing.assert_close(value, right, rtol=0, atol=bound)
        compilations.append(counter.frame_count)
    assert compilations[1] == compilations[0] > 0


@crossed(2, kind=[*NAMES], strict=[False, True])
def test_every_form_exports_as_one_node_with_dynamic_shapes(kind, strict):
    specs = [spec for form in FORMS if (spec := spec_of(form, 6)).kind == kind]
    operands = [tensors(case_of(spec, FLOAT, FLOAT, None)) for spec in specs]
    rows = [name for name in operands[0] if name in ("x", "residual", "gate")]

    class Norms(torch.nn.Module):
        """All forms of one kind, of the same rows; other operands are its own."""

        def __init__(self):
            super().__init__()
            for index, own in enumerate(operands):
                for name in own.keys() - {*rows}:
                    self.register_buffer(f"{name}_{index}", own[name])

        def forward(self, *values):
            given, outputs = dict(zip(rows, values, strict=True)), []
            for index, spec in enumerate(specs):
                names = ("cos", "sin", "scale") if kind == "RotaryRMSNorm" else ("scale",)
                own = {name: getattr(self, f"{name}_{index}") for name in names}
                y = rt.call(spec, **given, **own)
                outputs += y if isinstance(y, tuple) else [y]
            return outputs

    module = Norms()
    inputs, larger = (tuple(torch.randn(a, b, 3, 6) for _ in rows) for a, b in ((2, 5), (3, 4)))
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    dynamic = tuple({0: batch, 1: length} for _ in rows)
    program = torch.export.export(module, inputs, dynamic_shapes=(dynamic,), strict=strict)
    for graph in (program.graph, program.run_decompositions().graph):
        calls = [str(node.target) for node in graph.nodes if node.op == "call_function"]
        calls = [target for target in calls if "getitem" not in target]
        assert calls == [f"rmsnorm_export.{NAMES[kind]}.default"] * len(specs)
    torch.testing.assert_close(program.module()(*larger), module(*larger), rtol=0, atol=0)
