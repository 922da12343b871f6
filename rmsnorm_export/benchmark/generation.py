"""``bench --generate``: the first token and those after it, of a decoder with its cache.

A folder of prefill and decode as it is, and what ``ort``, without and with transformers' fusions,
makes of it. Each writes the tokens that the folder as it is chooses, so that all compute the same;
its logits are compared at every token.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.benchmark import sessions
from rmsnorm_export.benchmark.checks import check_outputs, count_nodes, judged
from rmsnorm_export.benchmark.feeding import Feeding, feeding_of
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import (
    AGAIN,
    RAW,
    Benchmark,
    Case,
    Machine,
    Timing,
    Trial,
    Variant,
)
from rmsnorm_export.benchmark.statistics import Run, run_rounds, timings
from rmsnorm_export.compare.outputs import describe_feeds
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph.bundle import open_folder, state_name, write_models
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import takes
from rmsnorm_export.printable import first_line, one_line
from rmsnorm_export.rewrite.caches import write_rows
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.runtime.inputs import declared_inputs, index_limits, numpy_type
from rmsnorm_export.runtime.session import onnxruntime
from rmsnorm_export.runtime.tokens import masks
from rmsnorm_export.system.machine import cores, load_average
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.reading import read_json

PROMPT = 16
"""Tokens of the prompt; one row."""

_PARTS = ("prefill", "decode")
_TOOK_PART = ("rmsnorm-export", "onnxruntime", "onnxruntime-gpu", "onnxscript", "transformers")
Graphs = Mapping[str, Path]


@takes(BenchOptions)
def bench_generation(folder: str | os.PathLike[str], options: BenchOptions) -> Benchmark:
    """Measure a decoder's first token, and the tokens after it, in ONNX Runtime.

    Variants: ``raw``, the folder as it is; ``ort``; and ``ort + fusions``, see ``optimize``. Where
    caches have a fixed size, ours are measured ``in place``, too: one buffer is input and output of
    each. The prompt has 16 tokens. The times of the second case are those of one token.

    Args:
        folder: of ``prefill.onnx`` and ``decode.onnx``, best exported with ``--target plain``.

    Raises:
        UsageError: the folder has no such components, or ``generate`` is not given.
        InputError: ONNX Runtime does not run the folder as it is.
        BackendMissingError: ONNX Runtime, a named provider or transformers is missing.
    """
    start, load_before, count = time.perf_counter(), load_average(), options.generate or 0
    bundle = open_folder(folder)
    if count < 1 or not all(part in bundle.files for part in _PARTS):
        raise UsageError(
            "The folder needs a graph for the prompt and one for each token.",
            found=", ".join(bundle.files),
            fix="export with --task generation, without --multi-token or --names optimum",
        )
    if options.native or options.shapes or options.dims:
        raise UsageError(
            "Generation takes no native, shapes or dims: it has a prompt of its own.",
            found=f"generate {count} with native, shapes or dims",
            fix="omit these, or generate",
        )
    feeding, window = feeding_of(bundle), _window(bundle.folder / "config.json")
    slots = feeding.slots if feeding else 0
    if slots and slots < PROMPT + count:
        raise UsageError(
            "The cache is shorter than the text that is measured.",
            found=f"{slots} tokens, of {PROMPT + count}",
            fix=f"measure {slots - PROMPT} tokens or fewer, or export a longer cache"
            if slots > PROMPT
            else "export a longer cache",
        )
    chosen, absent = sessions.choose_providers(options.providers)
    tell = options.progress or (lambda *_: None)
    threads = options.threads or cores()
    trials: list[Trial] = []
    measured: list[Timing] = []
    cases = (Case("first token", ()), Case(f"each of {count} tokens", ()))
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-bench-") as name:
        raw = {part: bundle.files[part] for part in _PARTS}
        steps = 2 + len(chosen)
        variants = [Variant(RAW, "raw", nodes=count_nodes(raw["decode"]))]
        files: dict[str, Graphs] = {RAW: raw}
        for done, made in enumerate(_VARIANTS):
            tell(f"making {made}", done, steps)
            variant, paths = _make(made, raw, Path(name) / made, options)
            variants.append(variant)
            if paths is not None:
                files[made] = paths
            if slots and paths is not None:
                variants.append(dataclasses.replace(variant, name=made + _IN_PLACE))
                files[made + _IN_PLACE] = paths
        for done, provider in enumerate(chosen, 2):
            tell(f"measuring on {provider}", done, steps)
            opens = {
                one: functools.partial(
                    _Decoder,
                    paths,
                    provider,
                    threads,
                    options.seed,
                    window,
                    feeding,
                    in_place=one.endswith(_IN_PLACE),
                )
                for one, paths in files.items()
            }
            try:
                expected = opens[RAW]().generate(count)
            except Exception as error:  # ONNX Runtime's own errors
                raise InputError(
                    f"ONNX Runtime does not run the folder on {provider}.",
                    found=first_line(error, 400),
                    fix="check it with verify --generate",
                ) from error
            cases = (Case(cases[0].label, expected.inputs), Case(cases[1].label, expected.inputs))
            trials += (_trial(one, provider, opens[one], expected) for one in opens)
            right = [t.variant for t in trials if t.provider == provider and t.status == "ok"]
            measured += _time(provider, [RAW, AGAIN, *right[1:]], opens, cases, expected, options)
    wrong = [f"{t.variant} on {t.provider}: {t.detail}" for t in trials if t.status != "ok"]
    wrong += [f"{one.name}: {one.detail}" for one in variants if one.status != "ok"]
    return Benchmark(
        source=str(bundle.folder),
        passed=not wrong,
        reason="; ".join(wrong),
        providers=chosen,
        cases=cases,
        variants=tuple(variants),
        trials=tuple(trials),
        timings=tuple(measured),
        reference=chosen[0],
        session=sessions.settings(threads),
        numerics=options.numerics,
        seed=options.seed,
        machine=Machine.here(load_before),
        versions=versions_of(_TOOK_PART),
        notes=(
            *(f"the provider {one} is not in this ONNX Runtime" for one in absent),
            *_rates(measured, cases[1].label),
        ),
        seconds=time.perf_counter() - start,
    )


_IN_PLACE = " in place"
_VARIANTS = ("ort", "ort + fusions")


def _make(
    name: str, raw: Graphs, folder: Path, options: BenchOptions
) -> tuple[Variant, Graphs | None]:
    """What one variant makes of both graphs, and its files."""
    start, models, fused, refused = time.perf_counter(), {}, 0, 0
    provider: Any = "cuda" if options.providers and "cuda" in options.providers else "cpu"
    try:
        for part, path in raw.items():
            after = provider if name != "ort" else None
            result = optimize(path, target="ort", numerics=options.numerics, fusions=after)
            models[part] = result.model
            write_rows(result.model)  # as an export is written
            if part == "decode":
                fused = len(result.report.fused) + len(result.report.kept)
                refused = len(result.report.unfused)
        folder.mkdir()
        write_models(models, folder)
    except Error as error:
        detail = one_line(f"{type(error).__name__}: {first_line(error, 300)}")
        return Variant(name, "target", "failed", detail), None
    paths = {part: folder / f"{part}.onnx" for part in raw}
    done = time.perf_counter() - start
    nodes = count_nodes(paths["decode"])
    made = Variant(name, "target", nodes=nodes, fused=fused, refused=refused, seconds=done)
    return made, paths


@dataclasses.dataclass(frozen=True, slots=True)
class _Text:
    """What was generated: the tokens, the logits of each, and what was fed first."""

    tokens: list[Array]
    logits: dict[str, Array]
    inputs: tuple[str, ...]


class _Decoder:
    """Sessions of prefill and decode; caches stay in the memory of the provider."""

    def __init__(
        self,
        files: Graphs,
        provider: str,
        threads: int,
        seed: int,
        window: int,
        feeding: Feeding | None,
        *,
        in_place: bool,
    ) -> None:
        self._sessions = {
            part: sessions.open_session(str(path), provider, threads=threads)
            for part, path in files.items()
        }
        self._device = "cpu" if provider == "cpu" else "cuda"
        declared = declared_inputs(self._sessions["prefill"])
        limit = index_limits(load_model(files["prefill"]).model).get("input_ids", 2)
        self._types = {name: numpy_type(item.dtype) for name, item in declared.items()}
        rng = np.random.default_rng(seed)
        self._prompt = rng.integers(0, limit, (1, PROMPT)).astype(self._types["input_ids"])
        self._window = np.array(window, np.int64)
        self._cache: dict[str, Any] = {}
        self._feeding, self._in_place = feeding, in_place

    def _run(self, part: str, ids: Array, length: int) -> Array:
        """Logits of the last token; the cache grows."""
        session, binding = self._sessions[part], self._sessions[part].io_binding()
        feeds: dict[str, Array] = {
            "input_ids": ids,
            "attention_mask": (mask := np.ones((1, length), np.int64)),
            "position_ids": np.arange(length - ids.shape[1], length)[None],
        }
        if (known := self._feeding) is not None:
            feeds |= masks(mask, ids.shape[1], known.slots, known.windows)
            for name, (sizes, dtype) in known.start.items():
                feeds[name] = np.zeros(
                    [size if isinstance(size, int) else 1 for size in sizes], dtype
                )
        for item in session.get_inputs():
            kept = self._cache.get(state_name(item.name))
            if kept is not None:
                binding.bind_ortvalue_input(item.name, kept)
            else:
                ends = item.name.endswith(_WINDOW)
                value = self._window if ends else np.ascontiguousarray(feeds[item.name])
                binding.bind_ortvalue_input(
                    item.name, onnxruntime().OrtValue.ortvalue_from_numpy(value)
                )
        names = [item.name for item in session.get_outputs()]
        for name in names:
            kept = self._cache.get(state_name(name))
            # Not the counters: they are read again after they are written.
            if self._in_place and kept is not None and len(kept.shape()) == 4:
                binding.bind_ortvalue_output(name, kept)
            else:
                binding.bind_output(name, "cpu" if name == "logits" else self._device)
        session.run_with_iobinding(binding)
        made = dict(zip(names, binding.get_outputs(), strict=True))
        logits = made.pop("logits").numpy()
        self._cache = {state_name(name): value for name, value in made.items()}
        return np.asarray(logits[:, -1])

    def prefill(self) -> Array:
        """Logits of the first token."""
        self._cache = {}
        return self._run("prefill", self._prompt, PROMPT)

    def decode(self, tokens: Sequence[Array], start: Mapping[str, Any]) -> None:
        """Run through the tokens, from the cache after the prompt."""
        self._cache = dict(start)
        for done, token in enumerate(tokens, 1):
            self._run("decode", token, PROMPT + done)

    def decoding(self, tokens: Sequence[Array]) -> Run:
        """One run through the tokens after the prompt."""
        self.prefill()
        return functools.partial(self.decode, tokens, self._cache)

    def generate(self, count: int, forced: Sequence[Array] = ()) -> _Text:
        """``count`` greedy tokens after the first, or the forced ones, and all logits."""
        logits = {"logits of token 1": self.prefill()}
        tokens: list[Array] = []
        for done in range(1, count + 1):
            last = list(logits.values())[-1]
            token = forced[done - 1] if forced else last.argmax(-1)[:, None]
            tokens.append(token.astype(self._prompt.dtype))
            text = self._run("decode", tokens[-1], PROMPT + done)
            logits[f"logits of token {done + 1}"] = text
        return _Text(tokens, logits, describe_feeds({"input_ids": self._prompt}))


_WINDOW = "._sliding_window_tensor"
"""The width of a sliding window, which such a cache of transformers holds from the start."""


def _window(config: Path) -> int:
    """The width that a config.json names; 0 without one."""
    try:
        return int(read_json(config, infinite=True).get("sliding_window") or 0)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return 0


def _trial(variant: str, provider: str, opens: Callable[[], _Decoder], expected: _Text) -> Trial:
    """The variant writes the same tokens; its logits beside those of raw."""
    try:
        start = time.perf_counter()
        decoder = opens()
        seconds = time.perf_counter() - start
        computed = decoder.generate(len(expected.tokens), expected.tokens).logits
    except Exception as error:  # ONNX Runtime's own errors
        return Trial(variant, provider, "failed", first_line(error, 300))
    checks = check_outputs("generation", computed, expected.logits)
    status, detail = judged(checks)
    return Trial(variant, provider, status, detail, tuple(checks), load_seconds=seconds)


def _time(
    provider: str,
    names: Sequence[str],
    opens: Mapping[str, Callable[[], _Decoder]],
    cases: Sequence[Case],
    expected: _Text,
    options: BenchOptions,
) -> Iterator[Timing]:
    """Both cases, every variant in each round."""

    def first(name: str) -> Run:
        return opens[RAW if name == AGAIN else name]().prefill

    def after(name: str) -> Run:
        return opens[RAW if name == AGAIN else name]().decoding(expected.tokens)

    how: Any = {"seconds": options.seconds, "rounds": options.rounds, "seed": options.seed}
    for case, opening, share in (
        (cases[0], first, 1),
        (cases[1], after, len(expected.tokens)),
    ):
        times = run_rounds([functools.partial(opening, name) for name in names], **how)
        each = [[[one / share for one in block] for block in blocks] for blocks in times]
        yield from timings(names, each, provider, case.label)


def _rates(measured: Sequence[Timing], case: str) -> Iterator[str]:
    """Tokens per second, a line for each provider."""
    for provider in dict.fromkeys(timing.provider for timing in measured):
        rates = [
            f"{timing.variant} {1000 / timing.median_ms:.1f}"
            for timing in measured
            if (timing.provider, timing.case) == (provider, case) and timing.variant != AGAIN
        ]
        yield f"tokens per second on {provider}: {', '.join(rates)}"
