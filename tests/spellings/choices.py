"""Everything that can be chosen about a spelled RMSNorm and about the graph around it.

Not every combination exists; ``settle`` replaces what cannot stand beside the rest by the nearest
thing that can, so that any drawn combination gives a valid model.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

STAGES = ("cast", "square", "mean", "stabilised", "root", "rstd", "normalised", "weight", "gained")
"""Values of a chain after which an Identity can stand, or which can be used elsewhere too."""


def _one_of(*values: Any) -> Any:
    """A field that takes these values, by default the first."""
    return dataclasses.field(default=values[0], metadata={"values": values})


def _options(record: type) -> dict[str, tuple[Any, ...]]:
    """The values of each field of ``_one_of``."""
    fields = dataclasses.fields(record)
    return {field.name: field.metadata["values"] for field in fields if field.metadata}


_NO_STAGE: frozenset[str] = frozenset()
_EACH_STAGE = [frozenset({stage}) for stage in STAGES]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """The graph around the norms; each field with its values, the default first.

    Attributes:
        lead, row: shape of the normalised tensor, ``row`` being what is normalised together.
        place: scopes around the norms, the outermost first.
        symbolic: leading dimensions have names instead of sizes.
        rows: values of the input rows; ``zero`` has a row of zeros, ``wide`` many magnitudes.
        leaks: stages of the first norm that are used outside it as well (main graph only).
        seed: of the weights and inputs.
    """

    opset: int = _one_of(17, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24)
    dtype: str = _one_of("float32", "float64", "float16", "bfloat16")
    lead: tuple[int, ...] = _one_of((2, 3), (3,), (), (2, 2, 3), (1, 1))
    row: tuple[int, ...] = _one_of(
        (8,), (1,), (2,), (3,), (5,), (6,), (16,), (64,), (2, 3), (4, 1), (2, 2, 2)
    )
    producer: str = _one_of("input", "identity", "matmul", "add", "transpose")
    consumer: str = _one_of("none", "neg", "matmul", "two", "add_x")
    place: tuple[str, ...] = _one_of(
        (), ("if",), ("if_both",), ("loop",), ("scan",), ("function",),
        ("if", "loop"), ("function", "if"), ("scan", "function"), ("function", "function"),
    )  # fmt: skip
    symbolic: bool = _one_of(False, True)
    value_infos: bool = _one_of(True, False)
    constants: str = _one_of("initializer", "node", "attribute")
    share: bool = _one_of(False, True)
    named: bool = _one_of(True, False)
    rows: str = _one_of("normal", "zero", "wide")
    leaks: frozenset[str] = _one_of(_NO_STAGE, *(s for s in _EACH_STAGE if "weight" not in s))
    leak_as: str = _one_of("output", "consumer")
    seed: int = 0

    @property
    def half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    @property
    def n(self) -> int:
        """Elements in a row."""
        return math.prod(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, *self.row)

    def settled(self) -> Frame:
        changes: dict[str, Any] = {}
        if self.producer == "transpose" and len(self.shape) < 2:
            changes["producer"] = "identity"
        if self.place:
            changes["leaks"] = _NO_STAGE
        if self.dtype == "bfloat16":
            # If, Loop and Scan take it from 16, Pow from 15, LpNormalization from 22
            changes["opset"] = max(self.opset, 16)
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelling:
    """One RMSNorm; the default is LLaMA's as torch writes it, without the casts.

    Attributes:
        rounding: ``plain`` computes in the type of x. The others compute in a wider type:
            ``llama`` rounds, then scales; ``gemma`` scales, then rounds; ``rstd`` rounds 1/rms and
            multiplies in the type of x.
        square: ``sumsq`` ReduceSumSquare, ``l2`` ReduceL2, ``lp`` LpNormalization.
        mean: ``sum_mul`` and ``sum_div`` are a sum times 1/n or over n (a norm: their roots).
        keepdims: ``unsqueeze`` right after the mean, ``late`` after the inverse.
        inverse: ``*_inside`` take the reciprocal first and the root then.
        gain: what the weight is multiplied with first.
        weight_stash: the weight is stored in the type in which it is used.
        offset: the gain is 1 + weight; ``offset_late``: added after the cast of the weight.
        group: number of groups, 0 for none.
        gate_own_type: the gate is computed in the type of x instead of the wider one.
    """

    rounding: str = _one_of("plain", "llama", "gemma", "rstd")
    casts: str = _one_of("shared", "separate")
    square: str = _one_of("pow", "mul", "sumsq", "l2", "lp")
    exponent: str = _one_of("same", "float32", "int64", "int32", "float16", "float64")
    exponent_shape: tuple[int, ...] = _one_of((), (1,))
    mean: str = _one_of("mean", "sum_mul", "sum_div")
    positive_axes: bool = _one_of(False, True)
    keepdims: str = _one_of("one", "omitted", "unsqueeze", "late")
    epsilon: str = _one_of("inside", "outside", "clamp", "clamp_inside", "none")
    epsilon_value: float = _one_of(1e-5, 1e-6, 1e-3, 0.0)
    epsilon_shape: tuple[int, ...] = _one_of((), (1,), (1, 1))
    epsilon_via: str = _one_of("plain", "identity", "cast")
    root: str = _one_of("sqrt", "pow")
    inverse: str = _one_of(
        "div", "reciprocal", "one_div", "pow", "reciprocal_inside", "one_div_inside"
    )
    gain: str = _one_of("last", "x", "rstd")
    swap_epsilon: bool = _one_of(False, True)
    swap_product: bool = _one_of(False, True)
    swap_gain: bool = _one_of(False, True)
    swap_bias: bool = _one_of(False, True)
    swap_sum: bool = _one_of(False, True)
    swap_gate: bool = _one_of(False, True)
    weight: str = _one_of("initializer", "local", "input", "none")
    weight_shape: str = _one_of("row", "one", "ones")
    weight_via: str = _one_of("plain", "identity", "cast", "unsqueeze")
    weight_stash: bool = _one_of(False, True)
    offset: str = _one_of("none", "one_plus", "plus_one")
    offset_late: bool = _one_of(False, True)
    bias: str = _one_of("none", "initializer", "input")
    residual: str = _one_of("none", "add", "add_used")
    group: int = _one_of(0, 2, 4)
    reshape: str = _one_of("zeros", "minus", "static")
    partial: str = _one_of("none", "slice", "split")
    gate: str = _one_of("none", "silu_after", "sigmoid_after", "silu_before", "sigmoid_before")
    gate_own_type: bool = _one_of(False, True)
    swish: bool = _one_of(False, True)
    identities: frozenset[str] = _one_of(_NO_STAGE, *_EACH_STAGE)

    @property
    def gate_before(self) -> bool:
        return self.gate.endswith("_before")

    @property
    def gate_after(self) -> bool:
        return self.gate.endswith("_after")

    def settled(self, frame: Frame) -> Spelling:
        """The nearest spelling that exists in ``frame``; rules in order of precedence."""
        spelling = self
        for rule in _RULES:
            changes = rule(spelling, frame)
            if changes:
                spelling = dataclasses.replace(spelling, **changes)
        return spelling


def _rounding(s: Spelling, f: Frame) -> dict[str, Any]:
    if f.dtype == "float64" and s.rounding != "plain":
        return {"rounding": "plain"}
    return {}


def _overflow(s: Spelling, f: Frame) -> dict[str, Any]:
    """1 / rms of a zero row has to fit a half type: ONNX Runtime rounds it or not as it likes."""
    if f.half and f.rows == "zero" and s.epsilon in ("outside", "clamp"):
        return {"epsilon_value": max(s.epsilon_value, 1e-3)}
    return {}


def _row(s: Spelling, f: Frame) -> dict[str, Any]:
    """Groups, parts and LpNormalization need one axis that can be cut."""
    changes: dict[str, Any] = {}
    single = len(f.row) == 1
    if s.group and not (single and f.n % s.group == 0 and f.n > s.group):
        changes["group"] = 0
    if s.partial != "none" and not (single and f.n > 1 and not changes.get("group", s.group)):
        changes["partial"] = "none"
    if s.group and s.reshape == "static" and f.symbolic:
        changes["reshape"] = "zeros"
    unknown_type = s.rounding == "plain" and f.dtype == "bfloat16" and f.opset < 22
    if s.square == "lp" and (not single or s.partial != "none" or unknown_type):
        changes["square"] = "l2"
    return changes


def _square(s: Spelling, _: Frame) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if s.square in ("sumsq", "l2", "lp") and s.mean == "mean":
        changes["mean"] = "sum_mul"
    if s.square == "lp" and s.epsilon != "none":
        changes["epsilon"] = "none"
    if s.square == "l2" and s.epsilon in ("inside", "clamp_inside"):
        changes["epsilon"] = "outside" if s.epsilon == "inside" else "clamp"
    return changes


def _inverse(s: Spelling, _: Frame) -> dict[str, Any]:
    """What has its root already has nothing left for these forms to fold the root into."""
    rooted = s.square == "l2" or s.epsilon in ("outside", "clamp")
    changes: dict[str, Any] = {}
    if rooted and s.inverse in ("pow", "reciprocal_inside", "one_div_inside"):
        changes["inverse"] = "reciprocal"
    if s.rounding == "rstd":
        if changes.get("inverse", s.inverse) == "div":
            changes["inverse"] = "reciprocal"
        if s.square == "lp":
            changes["square"] = "pow"
            changes["mean"] = "mean"
            changes["epsilon"] = "inside"
        if s.gate_before:
            changes["gate"] = s.gate.replace("before", "after")
        if s.group:
            changes["group"] = 0
    if s.square == "lp" and s.keepdims != "one":
        changes["keepdims"] = "one"
    return changes


def _gain(s: Spelling, _: Frame) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    early = s.rounding in ("plain", "gemma") and not s.group and s.weight != "none"
    if s.gain != "last" and (not early or s.square == "lp"):
        changes["gain"] = "last"
    elif s.gain == "rstd" and s.inverse == "div":
        changes["gain"] = "x"
    if s.weight == "none" and s.offset != "none":
        changes["offset"] = "none"
    if s.weight == "none" and s.bias != "none":
        changes["bias"] = "none"
    return changes


def _ranks(s: Spelling, f: Frame) -> dict[str, Any]:
    """Operands must not have more axes than what they meet: the output would grow.

    A weight with k axes in front of the row needs k leading axes of x; so does an epsilon of
    shape [1, 1] behind a reduction that dropped the row's axes.
    """
    changes: dict[str, Any] = {}
    leading = {"row": 0, "one": 1, "ones": 2}
    allowed = [name for name, axes in leading.items() if axes <= len(f.lead)]
    if s.weight_shape not in allowed:
        changes["weight_shape"] = allowed[-1]
    if s.weight_via == "unsqueeze" and changes.get("weight_shape", s.weight_shape) == "row":
        changes.update({"weight_shape": "one"} if f.lead else {"weight_via": "identity"})
    dropped = s.keepdims == "late" and not s.group
    rank = len(f.lead) + (0 if dropped else len(f.row))
    if len(s.epsilon_shape) > rank:
        changes["epsilon_shape"] = (1,) * rank
    return changes


def _gate(s: Spelling, f: Frame) -> dict[str, Any]:
    if s.swish and (f.opset < 24 or "silu" not in s.gate):
        return {"swish": False}
    return {}


_RULES = (_rounding, _row, _square, _inverse, _gain, _ranks, _gate, _overflow)


FRAME_OPTIONS, SPELLING_OPTIONS = _options(Frame), _options(Spelling)
"""The values of every choice by name, the simplest first."""
_EVERY_OPTION = {**FRAME_OPTIONS, **SPELLING_OPTIONS}
SINGLE = [(name, value) for name, values in _EVERY_OPTION.items() for value in values]
"""Every choice by itself, for ``single``."""

COMPANIONS: dict[tuple[str, Any], dict[str, Any]] = {
    ("rounding", "llama"): {"dtype": "float16"},
    ("rounding", "gemma"): {"dtype": "float16"},
    ("rounding", "rstd"): {"dtype": "float16", "inverse": "reciprocal"},
    ("casts", "separate"): {"dtype": "float16", "rounding": "llama"},
    ("mean", "mean"): {"square": "pow"},
    ("square", "sumsq"): {"mean": "sum_mul"},
    ("square", "l2"): {"mean": "sum_mul", "epsilon": "outside"},
    ("square", "lp"): {"mean": "sum_mul", "epsilon": "none"},
    ("gain", "rstd"): {"inverse": "reciprocal"},
    ("weight_shape", "ones"): {"weight_via": "plain"},
    ("weight_via", "unsqueeze"): {"weight_shape": "ones"},
    ("weight_stash", True): {"dtype": "float16", "rounding": "gemma"},
    ("offset_late", True): {"dtype": "float16", "rounding": "gemma", "offset": "plus_one"},
    ("swap_bias", True): {"bias": "initializer"},
    ("swap_sum", True): {"residual": "add_used"},
    ("swap_gate", True): {"gate": "silu_after"},
    ("swap_product", True): {"inverse": "reciprocal"},
    ("reshape", "minus"): {"group": 2},
    ("reshape", "static"): {"group": 2},
    ("gate_own_type", True): {"dtype": "float16", "rounding": "llama", "gate": "silu_after"},
    ("swish", True): {"opset": 24, "gate": "silu_after"},
    ("leak_as", "consumer"): {"leaks": frozenset({"mean"})},
}
"""What a choice needs beside it to make a difference, or to exist at all."""


def shown(value: object) -> str:
    """Return a value as it stands in the name of a test or of a model."""
    return "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


def single(name: str, value: Any) -> tuple[Spelling, Frame]:
    """The default with one option changed, and what that option needs beside it."""
    chosen = {**COMPANIONS.get((name, value), {}), name: value}
    if chosen.get("dtype") in ("float16", "bfloat16"):
        chosen.setdefault("rounding", "llama")
    frame = {key: chosen.pop(key) for key in list(chosen) if key in FRAME_OPTIONS}
    return Spelling(**chosen), Frame(**frame)
