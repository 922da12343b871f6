"""What ``refusal`` refuses, with its sentence; and what it must take."""

from __future__ import annotations

from typing import Any

import pytest

from rmsnorm_export.op.spec import NormSpec
from tests.plugins.kernel_cases import job_for, rotary_job
from tests.tools.shim import F16, F32, RefusalError, Shim

F32_TYPE, F16_TYPE, BF16_TYPE, FP8_TYPE, INT8_TYPE = range(5)

F32_NORM = dict.fromkeys(("x", "scale", "bias", "y"), F32_TYPE)
NAN, INFINITE = float("nan"), float("inf")
NORM: dict[str, list[dict[str, Any]]] = {
    "1 to 1048576 elements": [{"n": 0}, {"n": -4}, {"n": (1 << 20) + 1}],
    "x must be f32, f16 or bf16": [{"x": FP8_TYPE, "y": FP8_TYPE}, {"x": 9}],
    "scale must be of the type of x, or f32": [{"scale": BF16_TYPE}],
    "bias must be of the type of x, or f32": [{"bias": INT8_TYPE, "has_bias": True}],
    "y must be of the type of x": [{"y": F32_TYPE}, {"y": FP8_TYPE}],
    "a quantised y must be FP8 E4M3": [{"quantize": 1}, {"quantize": 2, "y": F32_TYPE}],
    "quantize must be none, static or per row": [{"quantize": 3, "y": INT8_TYPE}],
    "kind must be": [{"kind": 4}, {"kind": -1}],
    "activation must be silu or sigmoid": [{"activation": 2}],
    "epsilon must be finite and not negative": [{"epsilon": e} for e in (-1e-6, NAN, INFINITE)],
    "scale_offset must be finite": [{"scale_offset": INFINITE}],
    "scale_offset needs a scale": [{"scale_offset": 1.0, "has_scale": False}],
    "partial_size must be 0 or at most": [{"partial_size": -1}, {"partial_size": 65}],
    "group_size must be 0 or divide": [{"group_size": 24}, {"group_size": -8}],
    "partial_size.*cannot be combined": [{"partial_size": 8, "group_size": 8}],
    "association.*cannot be combined": [{"association": 2, "group_size": 8}],
    "epsilon.*cannot be combined": [{"epsilon_outside": True, "epsilon_clamp": True}],
    "round_rstd leaves nothing": [{"round_rstd": True, "scale_before_cast": True}],
    "association must be 0, 1 or 2": [{"association": 3}, {"association": -1}],
    "association 1 needs round_rstd": [{"association": 1}],
    "at least 1 apart": [{"inner": 0}],
    "need the last axis": [{"inner": 2, "group_size": 8}],
    "stash_half needs x of f16 or bf16": [{"stash_half": True, **F32_NORM}],
}
ROTARY: dict[str, list[dict[str, Any]]] = {
    "rotary_dim must be even": [{"rotary_dim": 7}, {"rotary_dim": -2}],
    "at most the elements of a row": [{"rotary_dim": 66}],
    "must be even": [{"n": 63}],
    "have no rotary embedding": [{"group_size": 8}, {"partial_size": 8}, {"inner": 2}],
    "cannot be quantised": [{"quantize": 1, "y": FP8_TYPE}],
    "cos and sin must be of the type of x, or f32": [{"table": BF16_TYPE}],
    "entries in a row, or half as many": [{"table_width": 16}, {"table_width": 0}],
}


@pytest.mark.parametrize("sentence", [*NORM, *ROTARY])
def test_refused(shim: Shim, sentence: str) -> None:
    job = job_for(64, F16, attributes={}) if sentence in NORM else rotary_job(64, F16)
    for fields in [*NORM.get(sentence, ()), *ROTARY.get(sentence, ())]:
        with pytest.raises(RefusalError, match=sentence):
            shim.run(job, **fields)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        (((2, 3), (2,)), "must broadcast"),
        (((2, 3), (2, 2, 3)), "must broadcast"),
        (((2, 3, 2, 3), (1, 3, 1, 3)), "at most two runs"),
    ],
    ids=str,
)
def test_tables_that_do_not_broadcast(shim: Shim, axes: Any, sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        shim.run(rotary_job(64, F16, axes=axes))


@pytest.mark.parametrize("n", [1, 1 << 20])
def test_the_ends_of_the_range_are_taken(shim: Shim, n: int) -> None:
    shim.run(job_for(n, F32, rows=1, attributes={}))


def test_attributes_that_cannot_matter_are_taken(shim: Shim) -> None:
    """As in ``NormSpec.canonical``: an association without a half stash type is no association."""
    spec = {"round_rstd": True}
    plain = shim.run(job_for(64, F16, attributes=spec))
    moot = shim.run(job_for(64, F16, attributes=spec | {"association": 1}))
    assert plain.y.tobytes() == moot.y.tobytes()
    assert NormSpec(round_rstd=True, association=1).canonical(10).association == 0
