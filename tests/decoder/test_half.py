"""``optimize --dtype`` of a decoder's folder."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

import rmsnorm_export as rx


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
