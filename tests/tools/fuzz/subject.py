"""What is judged: a mutant that is a valid model, what it is fed and what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime as ort

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import run_session, session_options
from tests.tools.fuzz.evaluate import Program
from tests.tools.fuzz.feeds import Signature, all_feeds
from tests.tools.fuzz.intervals import HALF, Array, Mode, Value
from tests.tools.fuzz.operators import CannotEvaluateError


class InvalidError(Exception):
    """A mutant that is no model: the reason is its message."""


@dataclasses.dataclass(slots=True)
class Feed:
    """Arrays for the inputs, and what ONNX Runtime makes of them, where it runs the model."""

    kind: str
    arrays: dict[str, Array]
    outputs: dict[str, Array] | None


class Mutant:
    """A valid model with what it computes.

    Raises:
        InvalidError: it is none: the checker, the evaluator or ONNX Runtime refuses it.
    """

    def __init__(self, model: onnx.ModelProto, signature: Signature, seed: int = 0) -> None:
        self.model = model
        self.content = model.SerializeToString(deterministic=True)
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception as error:
            raise InvalidError(f"checker: {first_line(error)}") from error
        try:
            self.program = Program(model)
        except CannotEvaluateError as error:
            raise InvalidError(str(error)) from error
        self.session = _session(self.content)
        self._expected: dict[tuple[int, Mode, frozenset[str]], dict[str, Value]] = {}
        self.feeds: list[Feed] = []
        problem = ""
        for kind, arrays in all_feeds(signature, seed):
            trace: dict[str, Value] = {}
            try:
                self.program.run(arrays, Mode(), trace=trace)
                outputs = None if self.session is None else run(self.session, arrays)
            except (CannotEvaluateError, InvalidError) as error:
                problem = problem or str(error)
                continue
            if not self.feeds:
                self.half = any(value.dtype in HALF for value in trace.values())
                self.half |= any(array.dtype in HALF for array in arrays.values())
            self.feeds.append(Feed(kind, arrays, outputs))
        if not self.feeds or self.feeds[0].kind != "plain":
            raise InvalidError(problem or "nothing could be fed")

    def expected(
        self, index: int, mode: Mode, slack: frozenset[str] = frozenset()
    ) -> dict[str, Value]:
        key = (index, mode, slack)
        if key not in self._expected:
            feeds = self.feeds[index].arrays
            self._expected[key] = self.program.run(feeds, mode, slack=slack)
        return self._expected[key]


def _session(content: bytes) -> Any:
    """None where ONNX Runtime has no kernel for some type."""
    try:
        return load(content)
    # The binding raises classes of its own that share no public base.
    except Exception as error:
        if type(error).__name__ == "NotImplemented":
            return None
        raise InvalidError(f"onnxruntime: {first_line(error)}") from error


def load(content: bytes) -> Any:
    """A session that runs the model as it is written."""
    options = session_options(optimize=False, threads=1)
    # It plans for the shapes that operators should give, and 1.31 does not reduce a tensor without
    # elements: whether its memory then fits depends on what else has such a shape.
    options.enable_mem_reuse = False
    options.log_severity_level = 4  # what it says of a node that cannot be run is in the exception
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name.

    Raises:
        InvalidError: it does not run.
    """
    try:
        return run_session(session, feeds)
    except rx.Error as error:
        raise InvalidError(f"onnxruntime: {error.found}") from error


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
