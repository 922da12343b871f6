"""Whether what `optimize` makes of a mutant computes what the mutant computes.

Nothing of the package judges itself: the mutant's own results are the expectation, as intervals in
which its declared rounding steps leave room for the order of sums and products and for nothing
else. A result is held against three of them:

- in float64, whatever the class: the mathematics of the model;
- in the declared types in NumPy, where half types occur or ONNX Runtime has no kernels: with every
  rounding in its place for ``exact``; each there or not, and one unit of the half type at the
  norm's value, for ``reordered``, which says nothing where a number overflows or is subnormal on
  the way; for ``upcast`` no further from float64 than the mutant is;
- in ONNX Runtime without graph optimization, which keeps float32 between some half operators.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.numerics import NUMERICS_ORDER, Numerics
from tests.tools.fuzz.evaluate import Program, rounded
from tests.tools.fuzz.intervals import SMALLEST, UNIT, Array, Mode, Value, is_float
from tests.tools.fuzz.operators import CannotEvaluateError
from tests.tools.fuzz.subject import Feed, InvalidError, Mutant, first_line, load, run

TIME_LIMIT = 20
"""Seconds that an optimization of a small model may take."""

_EXPLAINED = 4.0
"""Units of a half type that the rounding steps of a norm explain: x, 1/rms, gain, bias."""

Optimize = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a mutant is optimized."""

    target: str
    numerics: str
    prove: bool = False

    def __str__(self) -> str:
        return f"{self.target}/{self.numerics}{'/prove' if self.prove else ''}"


JUDGED: tuple[Numerics, ...] = tuple(n for n in NUMERICS_ORDER if n != "unclamped")
"""The classes that are tried; ``unclamped`` gives other numbers on purpose, which proofs hold."""

SETTINGS = tuple(Setting(target, numerics) for target in TARGETS for numerics in JUDGED)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: a short kind, and the words for it."""

    kind: str
    detail: str
    setting: str


@dataclasses.dataclass(slots=True)
class Verdict:
    """Of one mutant: what is wrong, how many norms became one node at most, what was refused."""

    findings: list[Finding]
    norms: int
    refusals: tuple[str, ...]
    compared: int
    unjudged: int


def judge(
    mutant: Mutant,
    settings: tuple[Setting, ...] = SETTINGS,
    proofs: tuple[Setting, ...] = (),
    optimize: Optimize = rx.optimize,
) -> Verdict:
    """Optimize with every setting, then with proofs, and compare each result with the mutant.

    Args:
        proofs: settings that are tried with ``prove=True`` as well.
        optimize: what is judged, in the form of `rmsnorm_export.optimize`.
    """
    verdict = Verdict([], 0, (), 0, 0)
    seen: dict[tuple[bytes, str], list[Finding]] = {}
    wrong: dict[tuple[str, str], bool] = {}
    refusals: set[str] = set()
    for setting in (*settings, *(dataclasses.replace(s, prove=True) for s in proofs)):
        result, findings = _optimized(mutant, setting, optimize)
        if result is not None:
            report = result.report
            verdict.norms = max(verdict.norms, len(report.fused) + len(report.kept))
            refusals.update(refusal.reason for refusal in report.refused)
            proto = ir.to_proto(result.model)
            content = proto.SerializeToString(deterministic=True)
            classes = {site.numerics for site in report.fused}
            numerics = next((n for n in reversed(NUMERICS_ORDER) if n in classes), "exact")
            key = (hashlib.sha256(content).digest(), numerics)
            if key not in seen:
                seen[key] = []
                slack = _values_of(proto, report) if numerics == "reordered" else frozenset()
                comparison = _Comparison(mutant, proto, content, numerics, slack, str(setting))
                if report.fused or _changed(mutant.model, proto):
                    seen[key] = comparison.run()
                verdict.compared += comparison.compared
                verdict.unjudged += comparison.unjudged
                findings += seen[key]
            bad = bool(findings) or bool(seen[key])
            if not setting.prove:
                wrong[setting.target, setting.numerics] = bad
            elif not wrong.get((setting.target, setting.numerics), False):
                findings += _false_proofs(report, setting)
        verdict.findings += findings
    verdict.refusals = tuple(sorted(refusals))
    return verdict


def _changed(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether there is anything to compare."""
    same = list(before.graph.node) == list(after.graph.node)
    same = same and list(before.graph.input) == list(after.graph.input)
    same = same and list(before.graph.output) == list(after.graph.output)
    return not (same and list(before.functions) == list(after.functions))


def _false_proofs(report: Any, setting: Setting) -> list[Finding]:
    return [
        Finding("proof-failed", f"{refusal.node}: {refusal.found}", str(setting))
        for refusal in report.refused
        if refusal.reason == "proof-failed"
    ]


def _optimized(mutant: Mutant, setting: Setting, optimize: Optimize) -> tuple[Any, list[Finding]]:
    start = time.perf_counter()
    result, findings = None, []

    def found(kind: str, detail: str) -> None:
        findings.append(Finding(kind, detail, str(setting)))

    try:
        with _time_limit(2 * TIME_LIMIT):
            result = optimize(
                mutant.model, target=setting.target, numerics=setting.numerics, prove=setting.prove
            )
    except rx.Error as error:
        found("refused", f"{error.what} {error.found}")
    except TimeoutError:
        found("slow", f"not done after {2 * TIME_LIMIT} s")
    except Exception as error:  # whatever it is, it is a finding
        found("exception", f"{type(error).__name__}: {first_line(error)}")
    seconds = time.perf_counter() - start
    if seconds > TIME_LIMIT and result is not None:
        found("slow", f"{seconds:.0f} s")
    if mutant.model.SerializeToString(deterministic=True) != mutant.content:
        found("input changed", "the model that was given is not what it was")
        mutant.model = onnx.ModelProto.FromString(mutant.content)
    return result, findings


def _values_of(model: onnx.ModelProto, report: Any) -> frozenset[str]:
    """The values of the sites whose class allows a unit, which keep their names."""
    names = {site.name for site in report.fused if site.numerics == "reordered"}
    values: set[str] = set()

    def visit(nodes: Any) -> None:
        for node in nodes:
            if node.name in names:
                values.update(name for name in node.output if name)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g.node)

    visit(model.graph.node)
    for function in model.functions:
        visit(function.node)
    return frozenset(values)


class _Comparison:
    """One result of `optimize` with the mutant that it was made of."""

    def __init__(
        self,
        mutant: Mutant,
        model: onnx.ModelProto,
        content: bytes,
        numerics: str,
        slack: frozenset[str],
        setting: str,
    ) -> None:
        self.mutant, self.model, self.content = mutant, model, content
        self.program = Program(model)
        self.numerics, self.slack, self.setting = numerics, slack, setting
        self.findings: list[Finding] = []
        self.compared = self.unjudged = 0

    def _found(self, kind: str, detail: str) -> None:
        if kind not in {finding.kind for finding in self.findings}:
            self.findings.append(Finding(kind, detail, self.setting))

    def run(self) -> list[Finding]:
        mutant = self.mutant
        # ONNX Runtime's operator in the default domain is none of onnx.
        if b"SimplifiedLayerNormalization" not in self.content:
            try:
                onnx.checker.check_model(self.model, full_check=True)
            except Exception as error:
                self._found("invalid", first_line(error))
        self._interface()
        session = None
        if mutant.session is not None:
            try:
                session = load(self.content)
            except Exception as error:
                self._found("does not load", first_line(error))
        for index, feed in enumerate(mutant.feeds):
            self._mathematics(index, feed)
            if mutant.half or mutant.session is None:
                self._declared(index, feed)
            if session is not None and feed.outputs is not None:
                self._in_runtime(index, feed, session)
        return self.findings

    def _interface(self) -> None:
        for what in ("input", "output"):
            old, new = (
                {v.name: v.type.SerializeToString(deterministic=True) for v in getattr(g, what)}
                for g in (self.mutant.model.graph, self.model.graph)
            )
            if list(old) != list(new):
                self._found("interface", f"{what}s {list(old)} -> {list(new)}")
            elif old != new:
                names = [name for name in old if old[name] != new[name]]
                self._found("interface", f"type or shape of the {what}s {names}")

    def _evaluated(self, feed: Feed, mode: Mode) -> dict[str, Value] | None:
        try:
            return self.program.run(feed.arrays, mode)
        except CannotEvaluateError as error:
            self._found("cannot be evaluated", f"{feed.kind}: {error}")
            return None

    def _mathematics(self, index: int, feed: Feed) -> None:
        outputs = self._evaluated(feed, Mode(wide=True))
        if outputs is None:
            return
        expected = self.mutant.expected(index, Mode(wide=True, spread=True))
        for name, value in expected.items():
            self._inside("mathematics", feed, name, outputs[name].lo, value, None)

    def _declared(self, index: int, feed: Feed) -> None:
        outputs = self._evaluated(feed, Mode())
        if outputs is None:
            return
        arrays = {name: rounded(value) for name, value in outputs.items()}
        if self.numerics == "upcast":
            own = self.mutant.expected(index, Mode())
            self._accurate(index, feed, arrays, {n: rounded(v) for n, v in own.items()}, "numpy")
            return
        mode = Mode(spread=True, free=self.numerics == "reordered")
        for name, value in self.mutant.expected(index, mode, self.slack).items():
            self._inside("declared types", feed, name, arrays[name], value, None)

    def _in_runtime(self, index: int, feed: Feed, session: Any) -> None:
        try:
            outputs = run(session, feed.arrays)
        except InvalidError as error:
            self._found("does not run", f"{feed.kind}: {error}")
            return
        assert feed.outputs is not None
        if self.numerics == "upcast":
            self._accurate(index, feed, outputs, feed.outputs, "onnxruntime")
            return
        mode = Mode(spread=True, free=self.mutant.half, runtime=True)
        for name, value in self.mutant.expected(index, mode, self.slack).items():
            self._inside("onnxruntime", feed, name, outputs[name], value, feed.outputs[name])

    def _inside(
        self, kind: str, feed: Feed, name: str, new: Array, value: Value, old: Array | None
    ) -> None:
        """An output lies in its interval, which is moved to where the runtime's own result is."""
        if old is not None and (new.shape != old.shape or new.dtype != old.dtype):
            self._found(
                "interface", f"{name}: {old.dtype} {old.shape} -> {new.dtype} {new.shape}, {kind}"
            )
            return
        if new.shape != value.lo.shape:
            # ONNX Runtime 1.31 does not reduce axes of a tensor without elements.
            if old is None or new.size:
                change = f"{value.lo.shape} -> {new.shape}"
                self._found("shape", f"{name} ({feed.kind}): {change}, {kind}")
            return
        if not is_float(value.dtype):
            wrong = (new != value.lo) & (new != value.hi)
            if wrong.any():
                self._found(kind, f"{name} ({feed.kind}): {value.dtype} results differ")
            return
        lo, hi, at = (array.astype(np.float64) for array in (value.lo, value.hi, new))
        unknown = (np.isneginf(lo) & np.isposinf(hi)) | (np.isnan(lo) != np.isnan(hi))
        with np.errstate(all="ignore"):
            if old is not None:
                own = old.astype(np.float64)
                unknown |= np.isnan(own) != np.isnan(lo)
                width = np.where(np.isfinite(hi - lo), hi - lo, 0)
                lo, hi = np.fmin(lo, own - width), np.fmax(hi, own + width)
                lo, hi = (np.where(np.isnan(own), own, end) for end in (lo, hi))
            good = (at >= lo) & (at <= hi) | (np.isnan(at) & np.isnan(lo)) | unknown
        self.compared += good.size
        self.unjudged += int(np.count_nonzero(unknown))
        if self.numerics == "reordered" and not good.all():
            good |= self._odd(feed, good.shape)
        if good.all():
            return
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        source = "" if old is None else f", the mutant {old[place]!r}"
        self._found(
            kind,
            f"{name}{list(place)} ({feed.kind}, {self.numerics}): {new[place]!r} outside of"
            f" [{lo[place]!r}, {hi[place]!r}]{source}; {np.count_nonzero(~good)} of {good.size}",
        )

    def _odd(self, feed: Feed, shape: tuple[int, ...]) -> Array:
        """Elements on whose way a number, or its square, is infinite, none, or subnormal, before or
        after: there ``reordered`` lets the order of the products show."""
        out = np.zeros(shape, np.bool_)
        for program in (self.mutant.program, self.program):
            trace: dict[str, Value] = {}
            program.run(feed.arrays, Mode(), trace=trace)
            arrays = [v.lo for v in trace.values() if is_float(v.dtype) and not v.constant]
            for array in (*arrays, *(a for a in feed.arrays.values() if is_float(a.dtype))):
                strange = _strange(array)
                if strange.any():
                    fits = _broadcasts(strange.shape, shape)
                    out |= np.broadcast_to(strange, shape) if fits else True
        return out

    def _accurate(
        self,
        index: int,
        feed: Feed,
        new: Mapping[str, Array],
        old: Mapping[str, Array],
        label: str,
    ) -> None:
        """The errors against float64 are no larger than the mutant's, or explained."""
        for name, value in self.mutant.expected(index, Mode(wide=True)).items():
            if new[name].shape != old[name].shape:
                change = f"{old[name].shape} -> {new[name].shape}"
                self._found("shape", f"{name} ({feed.kind}): {change}, {label}")
            if new[name].shape != value.lo.shape or old[name].shape != value.lo.shape:
                continue
            if not is_float(value.dtype):
                continue
            truth = value.lo.astype(np.float64)
            # A runtime may keep more than the mutant declares: what that declares counts as well.
            own = rounded(self.mutant.expected(index, Mode())[name])
            before = max(
                float(_ulps(array, truth, value.dtype).max(initial=0.0))
                for array in (old[name], own)
            )
            errors = _ulps(new[name], truth, value.dtype)
            # Where some roundings are dropped, what follows may make the others larger.
            reach = self.mutant.expected(index, Mode(spread=True, free=True))[name]
            at = new[name].astype(np.float64)
            errors = np.where((at >= reach.lo) & (at <= reach.hi), 0.0, errors)
            allowed = max(before, _EXPLAINED)
            worst = float(errors.max(initial=0.0))
            self.compared += truth.size
            if worst > allowed:
                self._found(
                    "accuracy",
                    f"{name} ({feed.kind}, upcast, {label}): {worst:.3g} units from float64, the"
                    f" mutant {before:.3g}",
                )


def _strange(array: Array) -> Array:
    size = np.abs(array.astype(np.float64))
    own = ml_dtypes.finfo(array.dtype)
    wide = np.finfo(np.float64 if array.dtype == np.float64 else np.float32)
    low, high = (math.sqrt(float(limit)) for limit in (wide.smallest_normal, wide.max))
    small = (size > 0) & (size < max(float(own.smallest_normal), low))
    return np.asarray(~(size <= high) | small)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _ulps(array: Array, truth: Array, dtype: np.dtype[Any]) -> Array:
    """Distance in units of the type; infinite where only one is a number and the truth fits."""
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        fits = np.isfinite(truth.astype(dtype).astype(np.float64))
        unit = np.where(fits, np.abs(truth), 1.0) * (2 * UNIT[dtype]) + SMALLEST[dtype]
        error = np.abs(wide - truth) / unit
    strange = np.isnan(truth) & ~np.isnan(wide)
    error = np.where(fits & ~np.isfinite(wide), np.inf, np.where(fits, error, 0.0))
    return np.asarray(np.where(strange, np.inf, error))


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
