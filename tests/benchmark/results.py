"""A benchmark as a value, with every kind of row, for the tests of what is made of it."""

from __future__ import annotations

from rmsnorm_export.benchmark.result import (
    AGAIN,
    RAW,
    Benchmark,
    Case,
    Check,
    Machine,
    Timing,
    Trial,
    Variant,
    Verdict,
)

CASES = ("ids=1x16", "ids=4x128")


def timing(variant: str, case: str, ratio: float, verdict: Verdict) -> Timing:
    """A timing with an interval of 2 % on either side."""
    return Timing(
        variant, "cpu", case, 90, 9, 5 * ratio, 4.9 * ratio, 5.2 * ratio, ratio,
        ratio - 0.02, ratio + 0.02, 0.03, verdict,
    )  # fmt: skip


def benchmark(*, wrong: bool = False) -> Benchmark:
    """Two shapes on the CPU: a fast, a slow and an equal variant, and two that are not ranked."""
    rows: list[tuple[str, float, Verdict]] = [
        (RAW, 1.0, "baseline"),
        (AGAIN, 1.01, "noise floor"),
        ("portable", 1.1, "slower"),
        ("onnx", 1.0, "no difference beyond noise"),
        ("ort", 0.8, "faster"),
    ]
    check = Check(CASES[0], "logits", False, "largest difference 2, 0.1 allowed", 2.0, 0.1)
    return Benchmark(
        source="model<b>.onnx",
        passed=not wrong,
        reason="ort on cpu: logits" if wrong else "",
        providers=("cpu",),
        cases=tuple(Case(label, (f"ids int64 {label}",)) for label in CASES),
        variants=(
            Variant(RAW, "raw", nodes=20),
            Variant("portable", "target", nodes=12, fused=2, refused=0, seconds=0.1),
            Variant("onnx", "target", nodes=12, fused=2, refused=0, seconds=0.1),
            Variant("ort", "target", nodes=12, fused=2, refused=0, seconds=0.1),
            Variant("native", "target", nodes=12, fused=2, refused=0),
            Variant("plain", "target", "failed", "no room"),
        ),
        trials=(
            *(Trial(n, "cpu", "ok", "", (), 0.1) for n, _, _ in rows if n != AGAIN),
            Trial("native", "cpu", "wrong outputs", "logits at ids=1x16", (check,)),
        ),
        timings=tuple(timing(n, case, r, v) for case in CASES for n, r, v in rows),
        reference="cpu",
        session={"intra_op_num_threads": 2},
        numerics="reordered",
        seed=0,
        machine=Machine("A CPU", 2, 16.0, "Linux", "3.11.1", 0.5, 1.0),
        versions={"onnxruntime": "1.2.3"},
        notes=("the provider cuda is not in this ONNX Runtime",),
        seconds=12.0,
    )
