"""What ``refusal`` refuses, with its sentence; and what it must take."""

from __future__ import annotations

import pytest

from rmsnorm_export.op.spec import NormSpec
from tests.plugins.kernel_cases import job_for
from tests.tools.shim import F16, F32, RefusalError, Shim

F32_TYPE, F16_TYPE, BF16_TYPE, FP8_TYPE, INT8_TYPE = range(5)

REFUSALS: tuple[tuple[dict[str, object], str], ...] = (
    ({"n": 0}, "1 to 1048576 elements"),
    ({"n": -4}, "1 to 1048576 elements"),
    ({"n": (1 << 20) + 1}, "1 to 1048576 elements"),
    ({"x": FP8_TYPE, "y": FP8_TYPE}, "x must be f32, f16 or bf16"),
    ({"x": 9}, "x must be f32, f16 or bf16"),
    ({"scale": BF16_TYPE}, "scale must be of the type of x, or f32"),
    ({"bias": INT8_TYPE, "has_bias": True}, "bias must be of the type of x, or f32"),
    ({"y": F32_TYPE}, "y must be of the type of x"),
    ({"y": FP8_TYPE}, "y must be of the type of x"),
    ({"quantize": 1}, "a quantised y must be FP8 E4M3 or INT8"),
    ({"quantize": 2, "y": F32_TYPE}, "a quantised y must be FP8 E4M3 or INT8"),
    (
        {"quantize": 3, "y": INT8_TYPE},
        "quantize must be none, static or per row",
    ),
    ({"kind": 4}, "kind must be"),
    ({"kind": -1}, "kind must be"),
    ({"activation": 2}, "activation must be silu or sigmoid"),
    ({"epsilon": -1e-6}, "epsilon must be finite and not negative"),
    ({"epsilon": float("nan")}, "epsilon must be finite and not negative"),
    ({"epsilon": float("inf")}, "epsilon must be finite and not negative"),
    ({"scale_offset": float("inf")}, "scale_offset must be finite"),
    ({"scale_offset": 1.0, "has_scale": False}, "scale_offset needs a scale"),
    ({"partial_size": -1}, "partial_size must be 0 or at most"),
    ({"partial_size": 65}, "partial_size must be 0 or at most"),
    ({"group_size": 24}, "group_size must be 0 or divide"),
    ({"group_size": -8}, "group_size must be 0 or divide"),
    ({"partial_size": 8, "group_size": 8}, "cannot be combined"),
    ({"round_rstd": True, "scale_before_cast": True}, "round_rstd leaves nothing"),
    ({"association": 3}, "association must be 0, 1 or 2"),
    ({"association": -1}, "association must be 0, 1 or 2"),
    ({"association": 1}, "association 1 needs round_rstd"),
    ({"association": 2, "group_size": 8}, "cannot be combined"),
    ({"epsilon_outside": True, "epsilon_clamp": True}, "cannot be combined"),
    ({"inner": 0}, "at least 1 apart"),
    ({"inner": 2, "group_size": 8}, "need the last axis"),
)


@pytest.mark.parametrize(("fields", "sentence"), REFUSALS, ids=lambda value: str(value)[:40])
def test_refused(shim: Shim, fields: dict[str, object], sentence: str) -> None:
    job = job_for(64, F16, attributes={})
    with pytest.raises(RefusalError) as caught:
        shim.run(job, **fields)
    assert sentence in str(caught.value)


def test_stash_type_of_f32_is_no_half(shim: Shim) -> None:
    with pytest.raises(RefusalError, match="stash_half needs x of f16 or bf16"):
        shim.run(job_for(64, F32, attributes={}), stash_half=True)


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
