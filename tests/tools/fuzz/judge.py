"""What is wrong with what `optimize` makes of a mutant.

- In float64 the result computes what the mutant computes: the evaluator of the proof runs both, and
  apart from constants that were rounded to their type they agree within what the proof allows.
- Called ``exact``, it rounds where the mutant rounds: with every rounding in its place in NumPy no
  more elements of a half type differ than the proof allows.
- In ONNX Runtime, as the graph is written, it is no further from float64 than the mutant is, or no
  further than the rounding steps explain.

A mutant with an If or a Loop has no float64 here: the two are compared in ONNX Runtime alone.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.runtime.metrics import is_float, ulp_unit
from rmsnorm_export.runtime.session import run_session, session_options
from tests.tools.fuzz.feeds import Signature, all_feeds

TIME_LIMIT = 30
"""Seconds that an optimization of a small model may take."""

_MATHEMATICS = 1e-10
_FLIPS, _STRAY = 0.02, 3
"""As in the proof: float64 sums in another order; elements at the boundary of a rounding."""

Optimize = Callable[..., Any]


class InvalidError(Exception):
    """A mutant that is no model: the reason is its message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a mutant is optimized."""

    target: str
    numerics: str
    prove: bool = False

    def __str__(self) -> str:
        return f"{self.target}/{self.numerics}{'/prove' if self.prove else ''}"


# `unclamped` gives other numbers on purpose, which proofs hold.
SETTINGS = tuple(Setting(t, n) for t in TARGETS for n in NUMERICS_ORDER if n != "unclamped")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: a short kind, and the words for it."""

    kind: str
    detail: str
    setting: str


@dataclasses.dataclass(slots=True)
class Verdict:
    """Of one mutant: what is wrong, how many norms became one node at most."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    norms: int = 0
    compared: int = 0


class Program:
    """A model, and what computes it: ONNX Runtime as it is written, NumPy, float64.

    Raises:
        InvalidError: ONNX Runtime refuses it, for another reason than a type without kernels.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.content = model.SerializeToString(deterministic=True)
        graphs = [model.graph, *model.functions]
        self.branches = any(a.HasField("g") for g in graphs for n in g.node for a in n.attribute)
        self.nodes = sum(len(graph.node) for graph in graphs)
        self.model = ir.from_proto(onnx.ModelProto.FromString(self.content))
        options = session_options(optimize=False, threads=1)
        # It plans for the shapes that operators should give, and 1.31 does not reduce a tensor
        # without elements: whether its memory then fits depends on what else has such a shape.
        options.enable_mem_reuse = False
        options.log_severity_level = 4
        ort.set_default_logger_severity(4)  # of a run that fails, too
        self._session = None
        try:
            self._session = ort.InferenceSession(
                self.content, options, providers=["CPUExecutionProvider"]
            )
        # The binding raises classes of its own that share no public base.
        except Exception as error:
            if type(error).__name__ != "NotImplemented":
                raise InvalidError(f"onnxruntime: {first_line(error)}") from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """Outputs in ONNX Runtime, or in NumPy where it has no kernels.

        Raises:
            InvalidError: it does not run.
        """
        if self._session is None:
            return self.declared(feeds)
        try:
            return dict(run_session(self._session, feeds))
        except rx.Error as error:
            raise InvalidError(f"onnxruntime: {error.found}") from error

    def declared(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """Outputs with every rounding in its place; None for control flow."""
        return None if self.branches else _evaluated(run_numpy, self.model, feeds)

    def exact(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], set[float]] | None:
        """Outputs in float64, and the scalar constants that are rounded; None for control flow."""
        if self.branches:
            return None
        result = _evaluated(run_float64, self.model, feeds)
        scalars = [a for a in result.constants if a.size == 1 and a.dtype != np.float64]
        return result.outputs, {float(a.reshape(())) for a in scalars}

    def attributes(self) -> set[float]:
        nodes = [*self.model.graph, *(n for f in self.model.functions.values() for n in f)]
        return {
            float(np.float32(a.value)) for node in nodes for a in node.attributes.values()
            if a.type == ir.AttributeType.FLOAT and not a.is_ref()
        }  # fmt: skip


def _evaluated(run: Callable[..., Any], model: ir.Model, feeds: Mapping[str, Array]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return run(model, feeds)
    except rx.Error as error:
        raise InvalidError(f"evaluator: {error.found}") from error


class Mutant:
    """A valid model with what it computes.

    Raises:
        InvalidError: it is none: the checker, the evaluator or ONNX Runtime refuses it.
    """

    def __init__(self, model: onnx.ModelProto, signature: Signature, seed: int = 0) -> None:
        self.model = model
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception as error:
            raise InvalidError(f"checker: {first_line(error)}") from error
        self.program = Program(model)
        self.runs: list[tuple[str, dict[str, Array], dict[str, Array], Any, Any]] = []
        for kind, feeds in all_feeds(signature, seed):
            try:
                outputs = self.program.run(feeds)
                exact, declared = self.program.exact(feeds), self.program.declared(feeds)
            except InvalidError:
                if not self.runs:
                    raise
                continue
            if outputs is None:
                raise InvalidError("nothing runs it")
            self.runs.append((kind, feeds, outputs, exact, declared))


def judge(
    mutant: Mutant, settings: tuple[Setting, ...] = SETTINGS, optimize: Optimize = rx.optimize
) -> Verdict:
    """Optimize with every setting and compare each result with the mutant."""
    verdict = Verdict()
    seen: dict[tuple[bytes, str], list[Finding]] = {}
    for setting in settings:
        result, findings = _optimized(mutant, setting, optimize)
        if result is not None:
            report = result.report
            verdict.norms = max(verdict.norms, len(report.fused) + len(report.kept))
            proto = ir.to_proto(result.model)
            classes = {site.numerics for site in report.fused}
            numerics = next((n for n in reversed(NUMERICS_ORDER) if n in classes), "exact")
            key = (proto.SerializeToString(deterministic=True), numerics)
            if key not in seen:
                comparison = _Comparison(mutant, proto, numerics, str(setting))
                seen[key] = comparison.run()
                verdict.compared += comparison.compared
            findings += seen[key]
            if not findings:  # a rewrite that is right is proven, too
                findings += [
                    Finding(r.reason, f"{r.node}: {r.found}", str(setting))
                    for r in report.refused if r.reason == "proof-failed"
                ]  # fmt: skip
        verdict.findings += findings
    return verdict


def _optimized(mutant: Mutant, setting: Setting, optimize: Optimize) -> tuple[Any, list[Finding]]:
    result, kind, detail = None, "", ""
    model = onnx.ModelProto.FromString(mutant.program.content)
    try:
        with _time_limit(TIME_LIMIT):
            result = optimize(
                model, target=setting.target, numerics=setting.numerics, prove=setting.prove
            )
    except rx.Error as error:
        kind, detail = "refused", f"{error.what} {error.found}"
    except TimeoutError:
        kind, detail = "slow", f"not done after {TIME_LIMIT} s"
    except Exception as error:  # whatever it is, it is a finding
        kind, detail = "exception", f"{type(error).__name__}: {first_line(error)}"
    if model.SerializeToString(deterministic=True) != mutant.program.content:
        kind, detail = "input changed", "the model that was handed over is not what it was"
    return result, [Finding(kind, detail, str(setting))] if kind else []


class _Comparison:
    """One result of `optimize` with the mutant that it was made of."""

    def __init__(self, mutant: Mutant, model: onnx.ModelProto, numerics: str, setting: str) -> None:
        self.mutant, self.model, self.numerics, self.setting = mutant, model, numerics, setting
        self.findings: list[Finding] = []
        self.compared = 0

    def _add(self, kind: str, detail: str) -> None:
        if kind not in {finding.kind for finding in self.findings}:
            self.findings.append(Finding(kind, detail, self.setting))

    def run(self) -> list[Finding]:
        for what in ("input", "output"):
            old, new = (
                [(v.name, v.type.SerializeToString(deterministic=True)) for v in getattr(g, what)]
                for g in (self.mutant.model.graph, self.model.graph)
            )
            if old != new:
                self._add("interface", f"{what}s {old} -> {new}")
        try:
            # ONNX Runtime's operator in the default domain is none of onnx.
            if b"SimplifiedLayerNormalization" not in self.model.SerializeToString():
                onnx.checker.check_model(self.model, full_check=True)
            program = Program(self.model)
        except Exception as error:
            self._add("invalid", first_line(error))
            return self.findings
        for kind, feeds, outputs, exact, declared in self.mutant.runs:
            try:
                self._feed(program, kind, feeds, outputs, exact, declared)
            except InvalidError as error:
                self._add("does not run", f"{kind}: {error}")
        return self.findings

    def _feed(
        self,
        program: Program,
        kind: str,
        feeds: Mapping[str, Array],
        outputs: Mapping[str, Array],
        exact: Any,
        declared: Any,
    ) -> None:
        new = program.run(feeds) or {}
        own_exact, own_declared = program.exact(feeds), program.declared(feeds)
        ends = kind in ("edges", "nonfinite")  # where another class than exact may differ
        for name, old in outputs.items():
            got = new[name]
            # ONNX Runtime 1.31 does not reduce axes of a tensor without elements.
            if old.dtype != got.dtype or (old.shape != got.shape and got.size):
                change = f"{old.dtype} {old.shape} -> {got.dtype} {got.shape}"
                self._add("shape", f"{name} ({kind}): {change}")
                continue
            if not got.size or not is_float(got.dtype):
                continue
            if exact is not None and own_exact is not None:
                if self.numerics == "exact" or not ends:
                    slack = self._slack(program, exact[1], own_exact[1])
                    pair = own_exact[0][name], exact[0][name]
                    self._mathematics(f"{name} ({kind})", *pair, slack)
                if self.numerics == "exact" and got.dtype.itemsize == 2 and declared is not None:
                    self._flips(f"{name} ({kind})", (own_declared or {})[name], declared[name])
            if not ends:
                truth = exact[0][name] if exact is not None else None
                self._accuracy(f"{name} ({kind})", got, old, truth)

    def _slack(self, program: Program, before: set[float], after: set[float]) -> float:
        """One ulp of 1 for each rounded scalar (1/n, sqrt(n)); none for what is an epsilon."""
        epsilons = program.attributes()
        rounded = [
            v for v in before | after
            if v and np.fmod(v * 2.0**8, 1) != 0
            and not any(abs(v - e) <= 1e-3 * abs(e) for e in epsilons)
        ]  # fmt: skip
        dtype = np.dtype(np.float16 if self._half else np.float32)
        return _MATHEMATICS + len(rounded) * float(ulp_unit(dtype, np.float64(1.0)))

    @property
    def _half(self) -> bool:
        return any(
            array.dtype.itemsize == 2 and is_float(array.dtype)
            for array in self.mutant.runs[0][1].values()
        )

    def _mathematics(self, place: str, got: Array, wanted: Array, slack: float) -> None:
        self._inside("mathematics", place, got, wanted, slack * np.abs(_top(wanted)))

    def _flips(self, place: str, got: Array, wanted: Array) -> None:
        differ = np.count_nonzero(_apart(got, wanted))
        if differ > _STRAY + _FLIPS * got.size:
            self._add("rounding", f"{place}: exact, but {differ} of {got.size} elements differ")

    def _accuracy(self, place: str, got: Array, old: Array, truth: Array | None) -> None:
        """No further from float64 than the mutant, or than each node's rounding explains."""
        spacing = float(ml_dtypes.finfo(got.dtype).eps)
        top = np.abs(_top(old.astype(np.float64) if truth is None else truth))
        steps = 4.0 * self.mutant.program.nodes + 24
        bound = spacing * (steps if got.dtype.itemsize > 2 else self.mutant.program.nodes + 2)
        if truth is None:
            self._inside("result", place, got, old, bound * 8 * top)
            return
        with np.errstate(all="ignore"):
            error = np.abs(old.astype(np.float64) - truth) / top
            own = float(np.max(error, initial=0.0, where=np.isfinite(error)))
        fits = np.isfinite(old.astype(np.float64)) | ~np.isfinite(truth)
        self._inside(
            "accuracy", place, np.where(fits, got, truth), truth, max(4 * own, bound) * top
        )

    def _inside(self, kind: str, place: str, got: Array, wanted: Array, within: Array) -> None:
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        # Another class may show the order of products where a number overflows.
        judged = np.isfinite(b) if self.numerics != "exact" or kind != "mathematics" else True
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= within + np.finfo(np.float64).tiny
        wrong = judged & ~(near | ~_apart(a, b))
        self.compared += a.size
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            self._add(
                kind,
                f"{place}{list(at)}: {a[at]!r} in place of {b[at]!r} ({self.numerics});"
                f" {np.count_nonzero(wrong)} of {a.size}",
            )


def _apart(a: Array, b: Array) -> Array:
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)))


def _top(array: Array) -> Array:
    """The largest finite magnitude of each row."""
    size = np.where(np.isfinite(array), np.abs(array), 0.0)
    return size.max(axis=-1, keepdims=True) if array.ndim else size


def first_line(error: BaseException) -> str:
    """The first line of an error that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]


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
