"""A benchmark as text and page."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.benchmark.result import AGAIN, RAW, headlines
from rmsnorm_export.show import show_blocks, to_text

from .results import CASES, benchmark, timing


def test_the_headline_says_who_is_faster() -> None:
    assert headlines(benchmark()) == [
        "cpu: faster than raw, whose time is 1: ort 0.80; slower than raw, whose time is 1:"
        " portable 1.10; no difference beyond noise: onnx"
    ]


def test_the_headline_says_that_there_is_no_difference() -> None:
    result = benchmark()
    quiet = tuple(t for t in result.timings if t.variant in (RAW, AGAIN, "onnx"))
    said = headlines(dataclasses.replace(result, timings=quiet))
    assert said == ["cpu: no difference beyond noise between raw and any variant"]
    assert headlines(dataclasses.replace(result, timings=())) == [
        "cpu: nothing could be timed against raw"
    ]


def test_the_headline_of_shapes_that_disagree() -> None:
    timings = (
        timing("ort", CASES[0], 0.8, "faster"),
        timing("ort", CASES[1], 1.2, "slower"),
        timing("onnx", CASES[0], 0.9, "faster"),
        timing("onnx", CASES[1], 1.0, "no difference beyond noise"),
    )
    assert headlines(dataclasses.replace(benchmark(), timings=timings)) == [
        "cpu: faster at some shapes, slower at others: ort 0.80-1.20; "
        "faster than raw, whose time is 1: onnx 0.90 at 1 of 2 shapes"
    ]


def test_the_text_ranks_and_says_what_is_not_ranked() -> None:
    lines = to_text(benchmark()).splitlines()
    first = lines.index("cpu, ids=1x16: raw 5 ms, 90 rounds in 9 openings")
    order = [line.split()[0] for line in lines[first + 2 : first + 7]]
    assert order == ["raw", "raw", "ort", "onnx", "portable"]
    text = "\n".join(lines)
    assert "0.780 - 0.820" in text
    assert "plain: failed: no room" in text
    assert "native on cpu: wrong outputs: logits at ids=1x16" in text
    assert "note: the provider cuda is not in this ONNX Runtime" in text
    assert len(show_blocks(benchmark(), verbose=-1)) == 1
    detailed = to_text(benchmark(), verbose=1)
    assert "ort: 12 nodes, 2 norms are one node, 0 refused" in detailed
    wrong = to_text(benchmark(wrong=True))
    assert wrong.startswith("WRONG OUTPUTS: ort on cpu: logits")


def test_an_engine_alone_is_shown_with_its_times() -> None:
    whole = benchmark()
    alone = dataclasses.replace(
        whole,
        variants=(dataclasses.replace(whole.variants[0], nodes=None),),
        session={"runtime": "TensorRT-RTX 1.7.1"},
        trials=(),
        timings=tuple(one for one in whole.timings if one.variant == RAW),
        notes=("an engine by itself: nothing was compared",),
    )
    assert headlines(alone) == ["cpu: 5 ms at ids=1x16, 5 ms at ids=4x128"]
    assert "nothing was compared" in alone.to_text()
    assert "TensorRT-RTX 1.7.1" in alone.to_text()
    assert "5 ms at ids=1x16" in alone.to_html()
