"""Every RMSNorm class of transformers, from three exporters in three types: found, proved, equal.

The list of classes, and which of them are RMSNorms, is in ``toolbox/corpus/norms.json``.
"""

from __future__ import annotations

import functools
import itertools
import operator
import pathlib
import re

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="exports come from it: pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import onnx_ir as ir
import transformers

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session
from tests.sample import one_each, sampled
from tests.tools.norms import combinations, export_norm
from toolbox.corpus.exporters import Export
from toolbox.corpus.norm_classes import norm_classes

pytestmark = pytest.mark.export

NORMS = {norm.key: norm for norm in norm_classes()}
EXPORTS = [
    (key, dtype, exporter) for key, norm in NORMS.items() for dtype, exporter in combinations(norm)
]
RMSNORMS = [case for case in EXPORTS if NORMS[case[0]].is_rmsnorm]
# Rows of length one with a number or a gain per head are two norms in one class.
SCALED = {"ZayaQKNorm"}
OTHERS = [case for case in EXPORTS if not NORMS[case[0]].is_rmsnorm and case[0] not in SCALED]
# Every RMSNorm once, every type with every exporter, and one norm of each sort that is none: an
# export of each takes most of a cold run.
SORTS = {
    "CohereLayerNorm", "NoNorm", "HYV4UnweightedRMSNorm", "PocketTTSTimestepNorm",
}  # fmt: skip
SAMPLE = one_each(
    [case for case in EXPORTS if case in RMSNORMS or case[0] in SORTS], key=operator.itemgetter(0)
)
TARGETS = ("portable", "ort", "onnx")
SAMPLED_TARGETS = {
    (case, target)
    for index, case in enumerate(case for case in RMSNORMS if case in SAMPLE)
    for target in ("portable", TARGETS[1 + index % 2])
}


@functools.cache
def exported(key: str, dtype: str, exporter: str) -> Export:
    return export_norm(NORMS[key], dtype, exporter)


def path_of(case: tuple[str, str, str]) -> str:
    export = exported(*case)
    if export.path is None:
        # torch's own limit, e.g. aten::rms_norm has no TorchScript translation.
        pytest.skip(f"the exporter cannot: {export.reason}; nothing enables it with this torch")
    return str(export.path)


def name(value: tuple[str, str, str] | str) -> str:
    return value if isinstance(value, str) else "-".join(value)


def test_every_class_named_rmsnorm_is_listed() -> None:
    """A release of transformers that has more needs them in toolbox/corpus/norms.json."""
    root = pathlib.Path(transformers.__file__).parent
    pattern = re.compile(r"^\s*class (\w*(?:RMS|Rms)[Nn]orm\w*)\(", re.MULTILINE)
    named = {
        f"{path.stem}.{name}"
        for path in root.glob("models/*/modeling_*.py")
        for name in pattern.findall(path.read_text())
    }
    listed = {".".join(one.split(".")[-2:]) for norm in NORMS.values() for one in norm.members}
    # those call other modules: a norm of the list, or two linear layers and no norm
    assert named - listed == {
        "modeling_axk2.AXK2GatedRMSNorm",
        "modeling_voxtral_realtime.VoxtralRealtimeTextAdaRmsNorm",
    }
    assert len(named) > 200


def test_the_sample_has_every_norm() -> None:
    assert {case[0] for case in SAMPLE} == {case[0] for case in RMSNORMS} | SORTS
    assert {case[1:] for case in SAMPLE if case in RMSNORMS} == {case[1:] for case in RMSNORMS}


@sampled("case, target", itertools.product(RMSNORMS, TARGETS), SAMPLED_TARGETS, ids=name)
def test_it_is_one_proved_node(case: tuple[str, str, str], target: str) -> None:
    """At the default numerics in the portable form, whatever the class, the type and the exporter;
    for others a chain that is computed wholly in a half type only where that is allowed. In
    float32 the numbers are those of the module in PyTorch."""
    path = path_of(case)
    result = rx.optimize(path, target=target, prove=True)
    if target != "portable" and not (result.report.fused or result.report.kept):
        assert [refusal.reason for refusal in result.report.refused] == ["numerics"]
        assert case[1] != "float32"
        result = rx.optimize(path, target=target, numerics="upcast", prove=True)
    report = result.report
    assert len(report.fused) + len(report.kept) == 1, report.refused
    assert all(site.proof is not None and site.proof.passed for site in report.fused)
    if target == "portable":
        assert report.fused
        onnx.checker.check_model(ir.serde.serialize_model(result.model), full_check=True)
    if case[1] == "float32":
        export = exported(*case)
        session, expected = load_session(result.to_bytes()), export.output()
        (output,) = run_session(session, export.inputs()).values()
        # Two float32 evaluations of up to 4 roundings and one sum of 48 squares.
        assert np.abs(output - expected).max() <= 16 * 2.0**-24 * np.abs(expected).max()


@sampled("case", OTHERS, SAMPLE, ids=name)
def test_no_other_norm_is_taken(case: tuple[str, str, str]) -> None:
    """LayerNorm, L2 norm, batch norm: not one node changes, and none is named as a norm."""
    path = path_of(case)
    result = rx.optimize(path, numerics="upcast")
    assert (result.report.fused, result.report.unfused) == ((), ())
    before, after = (ir.serde.serialize_model(m) for m in (ir.load(path), result.model))
    assert after.graph == before.graph
