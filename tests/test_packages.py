"""Models of other packages, as their exporters write them: every norm found, no number changed.

How many norms there are is counted in PyTorch. The ordinary
run exports a few; ``--thorough`` goes through all packages that are installed.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import get_args

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxruntime", reason="pip install 'rmsnorm-export[ort]'")

import onnxruntime
import torch

from rmsnorm_export.benchmark.worker import PEERS
from tests.tools.corpus.packages import compare, count, exports
from tests.tools.corpus.packages.table import PACKAGES, Package

pytestmark = [pytest.mark.export, pytest.mark.slow]

TRAILING = ("rms",)
"""Kinds of which every one is found, whatever the target."""

ALL: tuple[count.Kind, ...] = get_args(count.Kind)
"""Kinds of which portable finds every one."""


def _cases() -> Iterator[object]:
    for package in PACKAGES.values():
        yield pytest.param(package, True, id=package.name)
        yield pytest.param(package, False, id=f"{package.name}-all", marks=pytest.mark.thorough)


@pytest.mark.parametrize(("package", "light"), [*_cases()])
def test_every_norm_of_a_package(package: Package, light: bool) -> None:
    why = package.missing()
    if why:
        pytest.skip(why)
    made = [e for e in exports.exports(package.name, light=light) if e.path is not None]
    if not made:
        pytest.skip(f"{package.name} has no model in the ordinary run: scripts/test --thorough")
    wrong = [line for export in made for line in _faults(export)]
    assert wrong == []


def _faults(export: exports.PackageExport) -> Iterator[str]:
    """What is not as it should be with one file, in words."""
    assert export.path is not None
    try:
        before = compare.run(export.path.read_bytes(), export, optimized=False)
    except Exception:  # the exporter's own file does not load: nothing to compare, nothing to gain
        before = None
    best = compare.Found(0, 0)
    for target in compare.TARGETS:
        found, data = compare.ours(export.path, target, numerics="upcast")
        if before is not None:
            apart = compare.worst(compare.run(data, export, optimized=True), before)
            if apart > compare.TOLERANCE[export.dtype]:
                yield f"{export.key} {target}: numbers differ by {apart:.1e} of the largest"
        expected = export.expected(*(ALL if target == "portable" else TRAILING))
        if (before is not None or target == "portable") and found.norms < expected:
            yield f"{export.key} {target}: {found.norms} of {expected} norms"
        best = found if target == "ort" else best
    for tool in compare.OTHERS if before is not None else ():
        theirs = compare.others(export.path, tool)
        if isinstance(theirs, str):
            continue
        count_of = theirs[0]
        if count_of.norms > best.norms or count_of.residuals > best.residuals:
            yield f"{export.key}: {tool} finds {count_of}, this package {best}"


def test_a_peers_norm_over_other_rows_is_none(tmp_path: pathlib.Path) -> None:
    """A mean over channels that becomes one over channels, rows and columns."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,8,5,3] x) => (float[2,8,5,3] y)
        <float two = {2}, float eps = {0.00001}, float[8,1,1] w = {1,2,3,4,5,6,7,8}>
        {
            square = Pow(x, two)
            mean = ReduceMean<axes = [1], keepdims = 1>(square)
            stabilised = Add(mean, eps)
            rms = Sqrt(stabilised)
            v = Div(x, rms)
            y = Mul(v, w)
        }""")
    source, output = str(tmp_path / "x.onnx"), str(tmp_path / "y.onnx")
    onnx.save(model, source)
    PEERS["ort.transformers"].load()(source, output)
    assert "SimplifiedLayerNormalization" in {node.op_type for node in onnx.load(output).graph.node}
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 3)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(p).run(None, {"x": x})[0] for p in (source, output)
    )
    assert compare.worst(after, before) > 0.2
    theirs = compare.others(pathlib.Path(source), "ort.transformers")
    assert not isinstance(theirs, str)
    assert theirs[0] == compare.Found(0, 0)


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rms = torch.nn.RMSNorm(8)
        self.layer = torch.nn.LayerNorm(8)
        self.group = torch.nn.GroupNorm(2, 4)
        self.linear = torch.nn.Linear(8, 8)
        self.gelu = torch.nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rms(self.linear(self.rms(self.layer(x))))
        return self.gelu(self.group(x))


def test_norms_are_counted_by_what_they_compute() -> None:
    counted = count.count(_Layers(), (torch.randn(3, 4, 8),))
    assert counted.calls == {"rms": {"RMSNorm": 2}}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("rms", lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w + w),
        ("l2", lambda x, w: torch.nn.functional.normalize(x, dim=-1) * 8**0.5 * w),
        ("rms", lambda x, w: torch.nn.functional.rms_norm(x.unflatten(-1, (2, 4)), (4,), eps=1e-6)
         .flatten(-2) * w),
        ("channel", lambda x, w: x * (x.square().mean(1, True) + 1e-6).rsqrt() * w[:, None]),
        ("channel-l2", lambda x, w: torch.nn.functional.normalize(x, dim=1) * w[:, None]),
        ("", lambda x, w: x * (x.var(-1, keepdim=True) + 1e-6).rsqrt() * w),
        ("", lambda x, w: x / x.abs().mean(-1, keepdim=True) * w),
        ("", lambda x, w: x * w),
    ],
)  # fmt: skip
def test_kinds(kind: str, change) -> None:  # type: ignore[no-untyped-def]
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(8) + 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(x, self.weight)

    counted = count.count(torch.nn.Sequential(Norm()), (torch.randn(3, 8, 8),))
    assert counted.calls == ({kind: {"Norm": 1}} if kind else {})
