"""Whole models in ONNX Runtime: the exported file against what each target makes of it.

Part ``models`` of tests.tools.gpu. The reference of the outputs is the raw file without any graph
optimization, on the same provider.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.benchmark.result import AGAIN, RAW
from rmsnorm_export.system.machine import cores
from rmsnorm_export.system.packages import pip_install, versions_of
from tests.tools.gpu.decoder import (
    KINDS,
    OPSET,
    TARGETS,
    Case,
    Decoder,
    decoder_of,
    optimized,
    raw_files,
)
from tests.tools.gpu.part import Clock, Results, SkippedError
from tests.tools.lib.command import say

NATIVE = "portable, our kernels"
"""The variant of a session with the library of kernels registered."""


def described(decoder: Decoder) -> dict[str, Any]:
    """The model, for the record."""
    known = dataclasses.asdict(decoder) | {"dtype": "float16", "opset": OPSET}
    return {"decoder": known}


def cases(arguments: argparse.Namespace, kind: str) -> list[Case]:
    """The shapes of one kind, the largest last."""
    found = [Case(kind, b, n) for b in arguments.batches for n in arguments.lengths]
    return sorted(found, key=lambda case: case.batch * case.length)


def in_time(todo: list[Case], results: Results, clock: Clock) -> Iterator[Case]:
    """The cases while there is time: each is taken to need as long as the one before it did."""
    took = 0.0
    for case in todo:
        if clock.left() < took:
            fix = f"give more --minutes, or --only {results.data['part']}"
            results.skip(f"{case.kind} {case.label}", "the time was over", fix)
            continue
        start = time.monotonic()
        yield case
        took = time.monotonic() - start


def runtime(device: str) -> Any:
    """ONNX Runtime with the provider of ``device``.

    Raises:
        SkippedError: it, or the provider, is not there.
    """
    brings = pip_install("[ort]")
    if device == "cuda":
        brings = f"pip uninstall -y onnxruntime; {pip_install('[ort-gpu]')}"
    try:
        import onnxruntime
    except ImportError as error:
        raise SkippedError(f"no ONNX Runtime: {error}", brings) from error
    here = onnxruntime.get_available_providers()
    if device == "cuda" and "CUDAExecutionProvider" not in here:
        said = f"ONNX Runtime {onnxruntime.__version__} has {', '.join(here)} and no CUDA provider"
        raise SkippedError(said, brings)
    if device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN of the packages that PyTorch brought
    return onnxruntime


def session_of(
    path: Path, device: str, *, optimize: bool = True, kernels: Path | None = None
) -> Any:
    """A session of ``path`` that is on ``device``, with the library ``kernels`` registered.

    Raises:
        SkippedError: ONNX Runtime fell back to the CPU.
    """
    from rmsnorm_export.benchmark import sessions

    made = sessions.open_session(
        str(path),
        device,
        threads=cores(),
        optimize=optimize,
        kernels=None if kernels is None else str(kernels),
    )
    if not sessions.is_on(made, device):
        raise SkippedError(
            f"ONNX Runtime cannot use {sessions.provider_class(device)} and fell back to the CPU",
            "install the CUDA and cuDNN that this ONNX Runtime was built for",
        )
    return made


def run(arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Measure both kinds, each on its own: a failure of one leaves the other."""
    runtime(arguments.device)
    decoder = decoder_of(arguments.decoder, arguments.vocab)
    results.data |= described(decoder) | {"files": [], "rows": []}
    results.data["baseline"] = f"raw, ONNX Runtime ({arguments.device})"
    results.data["versions"] |= versions_of(("onnxruntime", "onnxruntime-gpu", "transformers"))
    results.save()
    raw = raw_files(decoder, arguments.work)
    kernels = None
    with results.piece(NATIVE):
        if clock.left() < 0:
            raise SkippedError("the time was over", "give more --minutes, or --only models")
        kernels = tried_kernels(arguments.kernels, arguments.device, results)
    for kind in KINDS:
        with results.piece(kind):
            _kind(kind, raw[kind], decoder, arguments, results, clock, kernels)


def tried_kernels(named: Path | None, device: str, results: Results) -> Path:
    """The library of kernels for ONNX Runtime; it has computed norms of every kind on ``device``.

    Raises:
        SkippedError: there is none, or none for this device.
    """
    from rmsnorm_export.errors import BackendMissingError
    from rmsnorm_export.tensorrt import plugin

    try:
        library = named or plugin.onnxruntime_library(cuda=device == "cuda")
    except BackendMissingError as missing:
        raise SkippedError(missing.what, missing.fix) from missing
    found = plugin.check(library)
    (trial,) = found.runtimes
    bad = [f"{check.name}: {check.detail}" for check in trial.checks if not check.passed]
    results.data["wrong"] += [f"{NATIVE}: {text}" for text in bad]
    results.data["native"] = {"library": library.name, "checks": len(trial.checks)}
    if not found.passed:
        raise RuntimeError(trial.detail or f"{len(bad)} of {len(trial.checks)} checks failed")
    if device == "cuda" and found.notes:
        raise SkippedError(
            found.notes[0], "rmsnorm-export plugin build --runtime onnxruntime --cuda"
        )
    return library


def _kind(
    kind: str,
    raw: Path,
    decoder: Decoder,
    arguments: argparse.Namespace,
    results: Results,
    clock: Clock,
    kernels: Path | None,
) -> None:
    from tests.tools.gpu.trial import Buffers, bound, trial

    paths = {RAW: raw, AGAIN: raw}
    for target in TARGETS:
        with results.piece(f"{kind}: optimizing for {target}"):
            paths[target], facts = optimized(raw, target)
            results.data["files"].append({"kind": kind, "variant": target} | facts)
    todo = cases(arguments, kind)
    expected = references(raw, decoder, todo, arguments)
    opened: dict[str, Any] = {}
    if kernels is not None and "portable" in paths:
        paths[NATIVE] = paths["portable"]
    for name, path in paths.items():
        with results.piece(f"{kind}: {name}"):
            start = time.perf_counter()
            registered = kernels if name == NATIVE else None
            opened[name] = session_of(path, arguments.device, kernels=registered)
            say(f"{kind}: {name} loaded in {time.perf_counter() - start:.1f} s")
    if not {RAW, AGAIN} <= opened.keys():
        raise RuntimeError("without raw there is nothing to compare with")
    for case in in_time(todo, results, clock):
        with results.piece(f"{kind} {case.label}"):
            buffers = Buffers(decoder, case, arguments.device, arguments.seed)
            rows = trial(
                case,
                {name: bound(session, buffers) for name, session in opened.items()},
                buffers,
                expected[case],
                provider=arguments.device,
                seconds=arguments.timing_seconds,
                seed=arguments.seed,
            )
            results.add(rows)


def references(
    raw: Path, decoder: Decoder, todo: list[Case], arguments: argparse.Namespace
) -> dict[Case, Any]:
    """The right outputs of every case: those of the raw file without graph optimization.

    Raises:
        RuntimeError: they are not finite, so that nothing could be told from them.
    """
    from tests.tools.gpu.trial import Buffers, bound

    session = session_of(raw, arguments.device, optimize=False)
    found = {}
    for case in todo:
        buffers = Buffers(decoder, case, arguments.device, arguments.seed)
        found[case] = buffers.result(bound(session, buffers))
        if not all(np.isfinite(array).all() for array in found[case].values()):
            raise RuntimeError(f"{case.kind} {case.label}: outputs are not finite in float16")
    return found
