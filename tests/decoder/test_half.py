"""``optimize --dtype`` of a decoder's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates


def test_graphs_of_a_folder_are_converted_alike_and_share_weights(
    decoder: Path, tmp_path: Path
) -> None:
    result = rx.optimize(decoder, dtype="f16", half_io=True, target="ort")
    saved = result.save(tmp_path / "half")
    for name, report in result.reports.items():
        assert report.precision.problem == ""
        assert "keep their largest element" in report.precision.compared
        graph = ir.load(saved.path / f"{name}.onnx").graph
        types = {value.dtype for value in (*graph.inputs, *graph.outputs)}
        assert {one for one in types if one.is_floating_point()} == {ir.DataType.FLOAT16}
    sizes = [sum(file.stat().st_size for file in at.glob("*.data")) for at in (decoder, saved.path)]
    assert sizes[1] < 0.6 * sizes[0]
    assert rx.verify(decoder, saved.path, rtol=2e-2).passed


def test_inputs_and_sizes_are_for_the_graph_that_has_them(decoder: Path) -> None:
    """As of an image encoder, which runs on no random ones."""
    models = {name: ir.load(decoder / f"{name}.onnx") for name in ("prefill", "decode")}
    candidates, _ = input_candidates(
        graph_inputs(models["prefill"]), index_limits(models["prefill"]), None
    )
    result = rx.optimize(decoder, dtype="f16", inputs=[next(iter(candidates()))])
    origins = {name: report.precision.inputs for name, report in result.reports.items()}
    assert origins == {"prefill": "given arrays", "decode": "random, seeds from 0"}
    (past,) = {
        size.value
        for value in models["decode"].graph.inputs
        if len(value.shape) == 4 and isinstance(size := value.shape[2], ir.SymbolicDim)
    }
    sized = rx.optimize(decoder, dtype="f16", dims=f"{past}=4").reports
    assert not any(report.precision.problem for report in sized.values())
    with pytest.raises(rx.UsageError, match="No component of the folder has inputs"):
        rx.optimize(decoder, dtype="f16", inputs=[{"z": np.zeros(3, np.float32)}])
