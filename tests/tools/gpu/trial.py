"""Runs on the same buffers: each checked against a reference first, then timed in turn.

Inputs and outputs stay in the memory of the device, so that no copy is timed. The statistics are
those of ``rmsnorm_export.bench``: every ratio is to the first one's time in the same round, and
what differs no more than a second session of the very same file is called noise.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rmsnorm_export.benchmark.measure import check_outputs
from rmsnorm_export.benchmark.statistics import timings
from rmsnorm_export.op.dtypes import Array
from tests.tools.gpu.decoder import Case, Decoder
from tests.tools.lib.command import say
from tests.tools.lib.timing import Run, interleaved, seconds_of

WARM_UP = 3
FEWEST, MOST = 15, 500
_SHOWN = 16
"""Last positions of every key and value that are compared; the newest are there."""


class Buffers:
    """Inputs and outputs of one case.

    Args:
        decoder, case: what for.
        device: of PyTorch: ``cuda`` or ``cpu``.
        seed: of the inputs.
    """

    def __init__(self, decoder: Decoder, case: Case, device: str, seed: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        drawn: dict[str, Any] = {"device": device, "generator": generator}
        self.device = device
        self.inputs: dict[str, torch.Tensor] = {}
        for name, shape in case.inputs(decoder).items():
            if name == "input_ids":
                self.inputs[name] = torch.randint(decoder.vocab, shape, **drawn)
            else:
                self.inputs[name] = torch.randn(shape, dtype=torch.float16, **drawn)
        self.outputs = {
            name: torch.empty(shape, dtype=torch.float16, device=device)
            for name, shape in case.outputs(decoder).items()
        }

    def result(self, run: Run) -> dict[str, Array]:
        """What ``run`` writes: logits, and the last positions of keys and values."""
        for tensor in self.outputs.values():
            tensor.fill_(float("nan"))
        self.wait()
        run()
        self.wait()
        return {
            name: (tensor if tensor.dim() == 3 else tensor[:, :, -_SHOWN:]).cpu().numpy()
            for name, tensor in self.outputs.items()
        }

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device != "cpu":
            torch.cuda.synchronize()


def bound(session: Any, buffers: Buffers) -> Run:
    """One run of an ONNX Runtime session on ``buffers``, which outlive it."""
    binding = session.io_binding()
    for names, tensors, bind in (
        (session.get_inputs(), buffers.inputs, binding.bind_input),
        (session.get_outputs(), buffers.outputs, binding.bind_output),
    ):
        for item in names:
            tensor = tensors[item.name]
            kind = np.int64 if tensor.dtype == torch.int64 else np.float16
            bind(item.name, buffers.device, 0, kind, tuple(tensor.shape), tensor.data_ptr())

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


def trial(
    case: Case,
    runs: Mapping[str, Run],
    buffers: Buffers,
    expected: dict[str, Array],
    *,
    provider: str,
    seconds: float,
    seed: int,
) -> list[dict[str, Any]]:
    """A row for every run: its worst difference from ``expected``, and its time where it is right.

    The first two are the baseline and the same again. They are timed in any case; the baseline's
    difference is what its runtime's own optimizations make.

    Args:
        case: for the record.
        runs: name -> run; two at least.
        buffers: that they work on.
        expected: what is right, as ``Buffers.result`` gives it.
        provider: for the record.
        seconds: of measuring them all.
        seed: of the orders.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        row: dict[str, Any] = {**dataclasses.asdict(case), "variant": name, "provider": provider}
        rows[name] = row
        try:
            checks = check_outputs(case.label, buffers.result(run), expected)
        except Exception as error:  # a runtime's own classes
            row |= {"status": "failed", "detail": f"{type(error).__name__}: {error}"[:300]}
            continue
        worst = max(checks, key=lambda check: check.max_abs / (check.bound_abs or 1))
        wrong = [check for check in checks if not check.passed]
        row |= {"status": "wrong outputs" if wrong else "ok", "detail": ""}
        row |= {"output": worst.output, "max_abs": worst.max_abs, "allowed": worst.bound_abs}
        if wrong:
            row["detail"] = f"{wrong[0].output}: {wrong[0].reason} ({len(wrong)} outputs)"
    first, again = list(runs)[:2]
    right = [name for name in runs if rows[name]["status"] == "ok" or name in (first, again)]
    if any(rows[name]["status"] == "failed" for name in (first, again)):
        return list(rows.values())
    times = _rounds([runs[name] for name in right], seconds, seed)
    for timing in timings(right, [[each] for each in times], provider, case.label):
        rows[timing.variant]["timing"] = dataclasses.asdict(timing)
    say(f"{case.kind} {case.label}: {', '.join(_told(rows[name]) for name in right)}")
    return list(rows.values())


def _told(row: dict[str, Any]) -> str:
    timing = row["timing"]
    return f"{row['variant']} {timing['median_ms']:.2f} ms ({timing['ratio']:.3f})"


def _rounds(runs: list[Run], seconds: float, seed: int) -> list[list[float]]:
    """Seconds of each run by round."""
    samplers = [functools.partial(seconds_of, run) for run in runs]
    once = min(map(sum, zip(*interleaved(samplers, WARM_UP), strict=True)))
    rounds = max(FEWEST, min(MOST, int(seconds / max(once, 1e-9))))
    return interleaved(samplers, rounds, seed=seed)
