"""The same models as engines of TensorRT-RTX and TensorRT, beside ONNX Runtime on CUDA.

Part ``engines`` of tests/tools/gpu_check. Without a GPU the engines are built, and not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import AGAIN, RAW
from rmsnorm_export.errors import BackendMissingError, Error
from rmsnorm_export.system.packages import is_installed, versions_of
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, BackendInfo
from rmsnorm_export.tensorrt.engine.build import build_engine
from tests.tools.gpu.decoder import KINDS, Case, Decoder, decoder_of, optimized, raw_files
from tests.tools.gpu.models import cases, described, in_time, references, runtime, session_of
from tests.tools.gpu.part import Clock, Results, SkippedError
from tests.tools.lib.command import say

_AT_ONCE = 3
"""Builds of TensorRT-RTX, which need no GPU, where there are twice as many cores or more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One engine: of which file, by which backend, with the plugin or not."""

    backend: BackendInfo
    form: str
    plugin: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend.label} {self.form}" + (" + plugin" if self.plugin else "")

    @property
    def file(self) -> str:
        return f"{self.backend.name}.{self.form}{'.plugin' if self.plugin else ''}"


PLANS = (
    *(Plan(RTX, form) for form in ("raw", "onnx", "portable")),
    *(Plan(TENSORRT, form) for form in ("raw", "onnx", "portable")),
    Plan(TENSORRT, "portable", plugin=True),
)


def run(arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Build and measure both kinds, each on its own: a failure of one leaves the other."""
    for info in (RTX, TENSORRT):
        lacking = [m for m in (info.module, "polygraphy") if not is_installed(m)]
        if lacking:
            results.skip(info.label, f"not installed: {', '.join(lacking)}", info.pip)
    plans = [p for p in PLANS if is_installed(p.backend.module) and is_installed("polygraphy")]
    if not plans:
        raise SkippedError("no backend that builds engines is installed", RTX.pip)
    decoder = decoder_of(arguments.decoder, arguments.vocab)
    results.data |= described(decoder) | {"engines": [], "rows": []}
    results.data["baseline"] = f"raw, ONNX Runtime ({arguments.device})"
    results.data["versions"] |= versions_of(("tensorrt", "tensorrt-rtx", "polygraphy"))
    results.data["versions"] |= versions_of(("onnxruntime", "onnxruntime-gpu", "transformers"))
    results.save()
    raw = raw_files(decoder, arguments.work)
    # One backend after the other: TensorRT builds for minutes, and what TensorRT-RTX gave is safe.
    for info in dict.fromkeys(plan.backend for plan in plans):
        mine = [plan for plan in plans if plan.backend is info]
        for kind in KINDS:
            with results.piece(f"{info.label}, {kind}"):
                built = _build(kind, raw[kind], mine, decoder, arguments, results, clock)
                if arguments.device == "cpu":
                    what = f"{kind}: running {len(built)} engines of {info.label}"
                    results.skip(what, "there is no GPU", "run it where a GPU is")
                    continue
                _measure_engines(kind, raw[kind], built, decoder, arguments, results, clock)


def _build(
    kind: str,
    raw: Path,
    plans: list[Plan],
    decoder: Decoder,
    arguments: argparse.Namespace,
    results: Results,
    clock: Clock,
) -> dict[Plan, Path]:
    """The engines of one backend that could be built; a row for every one."""
    paths = {"raw": raw}
    for form in dict.fromkeys(plan.form for plan in plans if plan.form != "raw"):
        paths[form], _ = optimized(raw, form)
    shapes = _ranges(kind, decoder, arguments)
    longest = 0.0

    def one(plan: Plan) -> tuple[Plan, dict[str, Any], Path]:
        nonlocal longest
        target = raw.with_name(f"{kind}.{plan.file}.engine")
        row: dict[str, Any] = {"kind": kind, "name": plan.name, "status": "not run"}
        if clock.left() < longest:
            fix = "give more --minutes, or --only engines"
            return plan, row | {"error": "the time was over", "fix": fix}, target
        start = time.monotonic()
        try:
            record = build_engine(
                paths[plan.form],
                target,
                backend=plan.backend.name,
                shapes=shapes,
                plugin="require" if plan.plugin else "never",
                force=True,
            ).record
        except BackendMissingError as error:  # no library of the plugin is built
            said = f"{error.what} found: {error.found}"
            return plan, row | {"error": said, "fix": error.fix}, target
        except Error as error:
            return plan, row | {"status": "failed", "error": str(error)}, target
        longest = max(longest, time.monotonic() - start)
        hows = [norm.how for norm in record.norms]
        row |= {"status": "built", "seconds": round(record.seconds, 1), "bytes": record.bytes}
        row |= {"norms": len(hows), "how": {how: hows.count(how) for how in dict.fromkeys(hows)}}
        say(f"{kind}: {plan.name} built in {record.seconds:.0f} s")
        return plan, row | {"layers": len(record.layers), "version": record.version}, target

    # Without a GPU in use builds may be side by side; TensorRT times kernels while it builds.
    spare = (os.cpu_count() or 1) >= 2 * _AT_ONCE and not plans[0].backend.needs_gpu
    built = {}
    with ThreadPoolExecutor(_AT_ONCE if spare else 1) as pool:
        for plan, row, target in pool.map(one, plans):
            results.data["engines"].append(row)
            if row["status"] == "built":
                built[plan] = target
            elif row["status"] == "failed":
                what = f"{kind}: building {plan.name}"
                results.data["failures"].append({"what": what, "error": row["error"]})
            else:
                results.skip(f"{kind}: {plan.name}", row["error"], row["fix"])
            results.save()
    return built


def _ranges(kind: str, decoder: Decoder, arguments: argparse.Namespace) -> dict[str, Any]:
    """One profile for all shapes; the largest one is the usual one, too."""
    small, large = (
        Case(kind, choose(arguments.batches), choose(arguments.lengths)).inputs(decoder)
        for choose in (min, max)
    )
    return {name: (shape, large[name], large[name]) for name, shape in small.items()}


def _measure_engines(
    kind: str,
    raw: Path,
    built: dict[Plan, Path],
    decoder: Decoder,
    arguments: argparse.Namespace,
    results: Results,
    clock: Clock,
) -> None:
    """Check and time the engines, in turn with ONNX Runtime; they are deleted on the way."""
    from tests.tools.gpu.loaded_engine import Engine
    from tests.tools.gpu.trial import Buffers, bound, trial

    todo, expected = cases(arguments, kind), {}
    sessions: dict[str, Any] = {}
    with results.piece(f"{kind}: ONNX Runtime beside the engines"):
        runtime(arguments.device)
        expected = references(raw, decoder, todo, arguments)
        for name in (RAW, AGAIN):
            sessions[name] = session_of(raw, arguments.device)
    engines: dict[str, Any] = {}
    for plan, path in built.items():
        with results.piece(f"{kind}: loading {plan.name}"):
            library = plugin.library("load_library") if plan.plugin else None
            engines[plan.name] = Engine(path, plan.backend.module, library)
        path.unlink()
    if not engines:
        raise RuntimeError("no engine could be loaded")
    for case in in_time(todo, results, clock):
        with results.piece(f"{kind} {case.label}"):
            buffers = Buffers(decoder, case, arguments.device, arguments.seed)
            runs: dict[str, Any] = {}
            if len(sessions) == 2:
                runs = {name: bound(session, buffers) for name, session in sessions.items()}
            else:
                first = next(iter(engines))
                results.data["baseline"] = f"{first}, which also gives the outputs to compare with"
                runs = {name: engines[first].on(buffers) for name in (RAW, AGAIN)}
                expected[case] = buffers.result(runs[RAW])
            for name, engine in engines.items():
                with results.piece(f"{kind} {case.label}: {name}"):
                    runs[name] = engine.on(buffers)
            rows = trial(
                case,
                runs,
                buffers,
                expected[case],
                provider=next(iter(built)).backend.name,
                seconds=arguments.timing_seconds,
                seed=arguments.seed,
            )
            for row in rows:
                if "timing" in row and hasattr(runs[row["variant"]], "device_ms"):
                    row["device_ms"] = runs[row["variant"]].device_ms()
            results.add(rows)
