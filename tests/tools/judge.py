"""What is wrong with what `optimize` makes of a model, spelled or drawn.

- In float64 the result computes what the model computes: the evaluator of the proof runs both, and
  apart from constants that were rounded to their type they agree within what the proof allows.
- Called ``exact``, it rounds where the model rounds: with every rounding in its place in NumPy no
  more elements of a half type differ than the proof allows.
- In ONNX Runtime, as the graph is written, it is no further from float64 than the model is, or no
  further than the rounding steps explain; and every bit is the same where nothing was rewritten.

A model with an If or a Loop has no float64 here: the two are compared in ONNX Runtime alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Set
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
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.runtime.metrics import is_float, ulp_unit
from rmsnorm_export.runtime.session import run_session, session_options
from tests.tools.feeds import Feeds, all_feeds

TIME_LIMIT = 30
"""Seconds that an optimization of a small model may take."""

_MATHEMATICS = 1e-10
_DEFAULT_EPSILON = float(np.float32(1e-5))
"""Of an operator that has none."""
_FLIPS, _STRAY = 0.02, 3
"""As in the proof: float64 sums in another order; elements at the boundary of a rounding."""

CLASSES = tuple(n for n in NUMERICS_ORDER if n != "unclamped")
"""`unclamped` gives other numbers on purpose, which proofs hold."""

Setting = Mapping[str, Any]
SETTINGS = tuple({"target": t, "numerics": n} for t in TARGETS for n in CLASSES)
"""Options of `optimize`, all that are judged."""


class InvalidError(Exception):
    """What is no model: the reason is its message."""


class UnrunnableError(InvalidError):
    """Control flow around a type for which ONNX Runtime has no kernels."""


@dataclasses.dataclass(slots=True)
class Verdict:
    """Of one model: what is wrong, by kind; how many norms became one node at most."""

    findings: dict[str, str] = dataclasses.field(default_factory=dict)
    norms: int = 0
    compared: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What a model computes of one set of inputs.

    Attributes:
        outputs: in ONNX Runtime, or in NumPy where it has no kernels.
        declared: with every rounding in its place; None for control flow, and what the evaluator
            does not take.
        exact: in float64; None likewise.
        scalars: numbers that are constants in it, each with how far away, relative to it, what was
            rounded to it may be.
    """

    outputs: Mapping[str, Array]
    declared: Mapping[str, Array] | None = None
    exact: Mapping[str, Array] | None = None
    scalars: Mapping[float, float] = dataclasses.field(default_factory=dict)


class Program:
    """A model, and what computes it.

    Raises:
        InvalidError: ONNX Runtime refuses it, for another reason than a type without kernels.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.content = model.SerializeToString(deterministic=True)
        self.model = ir.from_proto(onnx.ModelProto.FromString(self.content))
        scopes = [self.model.graph, *self.model.functions.values()]
        self.nodes = [node for scope in scopes for node in scope]
        attributes = [a for node in self.nodes for a in node.attributes.values()]
        self.branches = any(a.type == ir.AttributeType.GRAPH for a in attributes)
        floats = [a for a in attributes if a.type == ir.AttributeType.FLOAT and not a.is_ref()]
        self.floats = {float(np.float32(a.value)) for a in floats} | {_DEFAULT_EPSILON}
        stored = (v.const_value for v in self.model.graph.initializers.values())
        self.numbers = [
            t.numpy() for t in stored if t and t.size == 1 and t.dtype.is_floating_point()
        ]
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

    def run(self, feeds: Feeds) -> Run:
        """Return what it computes.

        Raises:
            InvalidError: it does not run.
        """
        if self._session is None and (other := self._other_shapes(feeds)):
            raise InvalidError(f"other shapes than are declared: {', '.join(other)}")
        try:
            outputs = None if self._session is None else dict(run_session(self._session, feeds))
        except rx.Error as error:
            raise InvalidError(str(error.found)) from error
        if self.branches:
            if outputs is None:
                raise UnrunnableError("nothing runs it")
            return Run(outputs)
        try:
            with np.errstate(all="ignore"):
                exact, declared = run_float64(self.model, feeds), run_numpy(self.model, feeds)
        except (rx.Error, KeyError) as error:  # an output of ONNX Runtime's own that it lacks
            if outputs is None:
                raise InvalidError(str(error)) from error
            return Run(outputs)
        scalars = {
            number: 0.5 * float(ulp_unit(a.dtype, np.float64(number))) / abs(number)
            for a in (*exact.constants, *self.numbers)
            if a.dtype != np.float64 and a.size and (a == a.flat[0]).all()
            and np.isfinite(number := float(a.flat[0])) and number
        }  # fmt: skip
        return Run(declared if outputs is None else outputs, declared, exact.outputs, scalars)

    def _other_shapes(self, feeds: Feeds) -> list[str]:
        """Return the inputs whose shape is not what the model declares, which ONNX Runtime refuses
        where it has kernels."""
        declared = {str(value.name): value.shape for value in self.model.graph.inputs}
        return [name for name, array in feeds.items() if not _fits(array, declared.get(name))]


def _fits(array: Array, shape: ir.Shape | None) -> bool:
    if shape is None or len(shape) != array.ndim:
        return shape is None
    sizes = zip(shape, array.shape, strict=True)
    return all(size == own for size, own in sizes if isinstance(size, int))


class Subject:
    """A valid model with what it computes of every kind of row, or of these inputs alone.

    Raises:
        InvalidError: it is none: the checker, the evaluator or ONNX Runtime refuses it.
    """

    def __init__(
        self, model: onnx.ModelProto, example: Feeds, seed: int = 0, *, alone: bool = False
    ) -> None:
        self.model = model
        try:
            _check(model)
        except Exception as error:
            raise InvalidError(f"checker: {first_line(error)}") from error
        self.program = Program(model)
        self.runs: list[tuple[str, Feeds, Run]] = []
        kinds = [("alone", example)] if alone else all_feeds(model, example, seed)
        for kind, feeds in kinds:
            try:
                self.runs.append((kind, feeds, self.program.run(feeds)))
            except InvalidError:
                if not self.runs:
                    raise


def _check(model: onnx.ModelProto) -> None:
    """Check a model; ONNX Runtime's operator in the default domain is none of onnx."""
    if b"SimplifiedLayerNormalization" not in model.SerializeToString():
        onnx.checker.check_model(model, full_check=True)


def judge(
    subject: Subject,
    settings: Iterable[Setting] = SETTINGS,
    optimize: Callable[..., Any] = rx.optimize,
) -> Verdict:
    """Optimize with every setting and compare each result with the model."""
    verdict = Verdict()
    comparisons: dict[tuple[bytes, str, bool], _Comparison] = {}
    for setting in settings:
        result, findings = _optimized(subject, setting, optimize)
        if result is not None:
            report, proto = result.report, ir.to_proto(result.model)
            verdict.norms = max(verdict.norms, len(report.fused) + len(report.kept))
            classes = {site.numerics for site in report.fused}
            numerics = max(classes, key=NUMERICS_ORDER.index, default="exact")
            # A scale may be spread over the row of a norm that is one node already.
            same = not report.fused and report.nodes_after <= report.nodes_before
            key = (proto.SerializeToString(deterministic=True), numerics, same)
            if key not in comparisons:
                comparisons[key] = _Comparison(subject, proto, numerics, same=same)
                verdict.compared += comparisons[key].compared
            findings |= comparisons[key].findings
            if not findings:  # a rewrite that is right is proven, too
                reasons = ("proof-failed", "recognition-failed")
                failed = [r for r in report.refused if r.reason in reasons]
                findings = {r.reason: f"{r.node}: {r.found}" for r in failed}
        for kind, detail in findings.items():
            verdict.findings.setdefault(kind, f"{detail} {dict(setting)}")
    return verdict


def disagreements(subject: Subject, expected: Mapping[str, Array]) -> dict[str, str]:
    """Return where a model's outputs are not what they should be in float64, by kind.

    What is expected may have rounded sums and gains on the way, which float64 has not: at most
    sixteen of them in a chain of three norms.
    """
    judged, (_, _, run) = _Findings(subject), subject.runs[0]
    for name, wanted in expected.items():
        # A row may have several axes.
        result, top = run.outputs[name], _top(np.reshape(wanted, -1))
        if run.exact is not None:
            within = judged.slack(run) + 16 * float(ml_dtypes.finfo(result.dtype).eps)
            judged.inside("mathematics", name, run.exact[name], wanted, within * top)
        judged.inside("result", name, result, wanted, judged.bound(result.dtype) * top)
    return judged.findings


def _optimized(
    subject: Subject, setting: Setting, optimize: Callable[..., Any]
) -> tuple[Any, dict[str, str]]:
    result, findings = None, {}
    model = onnx.ModelProto.FromString(subject.program.content)
    start = time.monotonic()
    try:
        result = optimize(model, **setting)
    except rx.Error as error:
        findings["refused"] = f"{error.what} {error.found}"
    except Exception as error:  # whatever it is, it is a finding
        findings["exception"] = f"{type(error).__name__}: {first_line(error)}"
    if (seconds := time.monotonic() - start) > TIME_LIMIT:
        findings["slow"] = f"{seconds:.0f} s"
    if model.SerializeToString(deterministic=True) != subject.program.content:
        findings["input changed"] = "the model that was handed over is not what it was"
    return result, findings


def _is_exact(number: float) -> bool:
    """Return whether a number was not rounded: a count, or of few digits, as 1 / sqrt(2) has not in
    any type (181 / 256 in float16)."""
    few = np.fmod(np.frexp(number)[0] * 2.0**5, 1) == 0
    return bool(abs(number) <= 2.0**10 and (few or np.fmod(number, 1) == 0))


class _Findings:
    """What is wrong, by kind, and how many elements were compared.

    Args:
        numerics: class in which two numbers are the same; another than ``exact`` may show the order
            of products where one overflows.
    """

    def __init__(self, subject: Subject, numerics: str = "exact") -> None:
        self.subject, self.numerics = subject, numerics
        self.findings: dict[str, str] = {}
        self.compared = 0

    def add(self, kind: str, detail: str) -> None:
        self.findings.setdefault(kind, detail)

    def slack(self, *runs: Run, epsilons: Set[float] = frozenset()) -> float:
        """What the rounding of the numbers explains (1/n, sqrt(n)), and that of the product of each
        with a stored scale, which has its own type in float64, too: of an epsilon, which is under
        the root, half a rounding; none of a count or an exponent."""
        scalars = {number: off for run in runs for number, off in run.scalars.items()}

        def share(number: float, rounding: float) -> float:
            within = max(1e-3, rounding) * abs(number)
            is_epsilon = any(abs(number - e) <= within for e in epsilons)
            if _is_exact(number) and (number in epsilons or not is_epsilon):
                return 0.0
            return rounding / 2 if is_epsilon else 2 * rounding

        return _MATHEMATICS + sum(share(*scalar) for scalar in scalars.items())

    def bound(self, dtype: np.dtype[Any]) -> float:
        """What the rounding of each node explains."""
        spacing, nodes = float(ml_dtypes.finfo(dtype).eps), len(self.subject.program.nodes)
        return spacing * (4.0 * nodes + 24 if dtype.itemsize > 2 else nodes + 2)

    def inside(self, kind: str, place: str, new: Array, wanted: Array, within: Array) -> None:
        a, b = new.astype(np.float64), wanted.astype(np.float64)
        judged = np.isfinite(b) if self.numerics != "exact" or kind != "mathematics" else True
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= within + np.finfo(np.float64).tiny
        wrong = judged & ~(near | ~_apart(a, b))
        self.compared += a.size
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            count = f"{np.count_nonzero(wrong)} of {a.size} ({self.numerics})"
            self.add(kind, f"{place}{list(at)}: {a[at]!r} in place of {b[at]!r}; {count}")


class _Comparison(_Findings):
    """One result of `optimize` with the model that it was made of; ``same``: every bit."""

    def __init__(
        self, subject: Subject, model: onnx.ModelProto, numerics: str, *, same: bool
    ) -> None:
        super().__init__(subject, numerics)
        self.same = same
        for what in ("input", "output"):
            old, new = (
                [(v.name, v.type.SerializeToString(deterministic=True)) for v in getattr(g, what)]
                for g in (subject.model.graph, model.graph)
            )
            if old != new:
                self.add("interface", f"{what}s {old} -> {new}")
        try:
            _check(model)
            program = Program(model)
        except Exception as error:
            self.add("invalid", first_line(error))
            return
        epsilons = subject.program.floats | program.floats
        for kind, feeds, before in subject.runs:
            try:
                self._compare(kind, before, program.run(feeds), epsilons)
            except InvalidError as error:
                self.add("does not run", f"{kind}: {error}")

    def _compare(self, kind: str, before: Run, after: Run, epsilons: set[float]) -> None:
        ends = kind in ("edges", "nonfinite")  # where another class than exact may differ
        for name, old in before.outputs.items():
            new, place = after.outputs[name], f"{name} ({kind})"
            # ONNX Runtime 1.31 does not reduce axes of a tensor without elements.
            if old.dtype != new.dtype or (old.shape != new.shape and new.size):
                self.add("shape", f"{place}: {old.dtype} {old.shape} -> {new.dtype} {new.shape}")
                continue
            if self.same and not np.array_equal(*(v.astype(np.float64) for v in (old, new)), True):
                self.add("changed", f"{place}: nothing was rewritten, and other bits come out")
            if not new.size or not is_float(new.dtype):
                continue
            exact = before.exact and before.exact[name]
            if exact is not None and after.exact is not None:
                if self.numerics == "exact" or not ends:
                    slack = self.slack(before, after, epsilons=epsilons)
                    within = slack * np.abs(_top(exact))
                    self.inside("mathematics", place, after.exact[name], exact, within)
                if self.numerics == "exact" and new.dtype.itemsize == 2:
                    self._flips(place, after, before, name)
            if not ends:
                self._accuracy(place, new, old, exact)

    def _flips(self, place: str, after: Run, before: Run, name: str) -> None:
        assert after.declared is not None
        assert before.declared is not None
        new, old = after.declared[name], before.declared[name]
        differ = np.count_nonzero(_apart(new, old))
        if differ > _STRAY + _FLIPS * new.size:
            self.add("rounding", f"{place}: exact, but {differ} of {new.size} elements differ")

    def _accuracy(self, place: str, new: Array, old: Array, exact: Array | None) -> None:
        """No further from float64 than the model, or than each node's rounding explains."""
        bound, wide = self.bound(new.dtype), old.astype(np.float64)
        if exact is None:
            self.inside("result", place, new, old, bound * 8 * np.abs(_top(wide)))
            return
        top = np.abs(_top(exact))
        with np.errstate(all="ignore"):
            error = np.abs(wide - exact) / top
            own = float(np.max(error, initial=0.0, where=np.isfinite(error)))
        fits = np.isfinite(wide) | ~np.isfinite(exact)
        within = max(4 * own, bound) * top
        self.inside("accuracy", place, np.where(fits, new, exact), exact, within)


def _apart(a: Array, b: Array) -> Array:
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)))


def _top(array: Array) -> Array:
    """The largest finite magnitude of each row."""
    size = np.where(np.isfinite(array), np.abs(array), 0.0)
    return size.max(axis=-1, keepdims=True) if array.ndim else size
