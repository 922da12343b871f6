"""Results to show: a report of some norms, and any result with any texts; and a reader of pages."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import types
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import onnx.parser

import rmsnorm_export as rx
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.diagnosis import _MODEL
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.rewrite.result import Site
from rmsnorm_export.show import _HOMES, _SHOWN_IN
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.tensorrt.engine.result import EngineRecord

HOSTILE = (
    "<script>window.ran=1</script>",
    '"><img src=x onerror="window.ran=2">',
    "' onmouseover='window.ran=3' x='",
    "</code></td></table></style></script><script>window.ran=4</script>",
    "]]><svg onload=window.ran=5>",
    "<!-- unclosed",
    "&lt;script&gt;window.ran=6&lt;/script&gt;",
    "javascript:window.ran=7",
    "line\nbreak\ttab\r\x00null\x1b[31mred",
    "right\u202eto\u202cleft \u2066isolate \u200bzero width \ufeffmark",
    "\u05d0\u05d1\u05d2/\u0645\u0631\u062d\u0628\u0627",
    "z\u0335\u0321\u0327a\u0334\u0315lgo",
    "lone\ud800surrogate",
    "x" * 100_000,
    "\u6f22" * 500,
    "{{7*7}}${7*7}`${window.ran=8}`",
    "url(http://evil.example/x) @import 'http://evil.example/y'",
    "",
)
"""Names that a file may hold."""

_REAL = rx.optimize(onnx.parser.parse_model(_MODEL), prove=True).report
SITE = dataclasses.replace(
    _REAL.fused[0],
    name="/layers.0/norm/Mul_1",
    nodes=("/layers.0/norm/Pow", "/layers.0/norm/Mul_1"),
    epsilon=1e-6,
    attributes={"scale_before_cast": 1},
    proof=None,
)
_ULPS = {"max_ulp": 1.0, "bound_ulp": 1.0, "error_before": 0.75, "error_after": 0.5}
PROOF = dataclasses.replace(_REAL.fused[0].proof, **_ULPS, runtime="onnxruntime 9.9 (CPU)")
REPORT = dataclasses.replace(_REAL, source="model.onnx", fused=(SITE,), runs_in=(), seconds=0.0)
REFUSAL = Refusal(
    node="/head/Add",
    op="Add",
    reason="epsilon-not-constant",
    message="epsilon is not a constant",
    found="the graph input eps",
    hint="make it an initializer",
    scope="main",
)
ALIKE = dataclasses.replace(
    REFUSAL,
    node="/head/Div",
    reason="layer-norm",
    message="this is a LayerNorm",
    hint="LayerNormalization is the better node",
    kind="look-alike",
)


def change(value: Any, **changes: object) -> Any:
    return dataclasses.replace(value, **changes)


def sites(
    count: int, pattern: str = "/layers.{}/norm/Mul_1", **changes: object
) -> tuple[Site, ...]:
    return tuple(change(SITE, name=pattern.format(i), **changes) for i in range(count))


def _classes() -> dict[str, type]:
    for module in _HOMES:
        importlib.import_module(f"rmsnorm_export.show.{module}")
    every = {EngineRecord, *Shown.__subclasses__()}
    return {one.__name__: one for one in every if one.__name__ in _SHOWN_IN}


CLASSES = _classes()
"""Every class of result that shows itself."""


def result_of(name: str, texts: tuple[str, ...] = ("name",)) -> Any:
    """Make a result of the class ``name``, all texts of which are ``texts`` in turn."""
    text, choice = itertools.cycle(texts), itertools.count()

    def make(hint: Any) -> Any:
        origin, args = get_origin(hint), get_args(hint)
        if hint is str:
            return next(text)
        if hint in (int, float, bool):
            return hint(1)
        if hint is Path:
            return Path(__file__)
        if hint is Any:
            return make(Verification)
        if origin is Literal:
            return args[next(choice) % len(args)]
        if origin in (Annotated, Union, types.UnionType):
            return make(args[0])
        if origin is tuple:
            return tuple(map(make, args[:1] * 3 if args[-1] is ... else args))
        if origin in (dict, Mapping):
            return {make(args[0]): make(args[1]) for _ in range(2)}
        hints = get_type_hints(hint)
        return hint(**{f.name: make(hints[f.name]) for f in dataclasses.fields(hint) if f.init})

    return make(CLASSES[name])


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order.

    Attributes:
        elements: (name, attributes) in order.
        text: all between tags but the style.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]}")

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def values(self, name: str) -> list[str]:
        """Return every value of an attribute."""
        return [str(attributes[name]) for _, attributes in self.elements if name in attributes]
