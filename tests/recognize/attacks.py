"""Files of a few hundred bytes that ask whoever evaluates them for memory or time without end.

    python -m tests.recognize.attacks STEP OFFSET

answers a part of them, as a process of its own.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from onnx import parser

import rmsnorm_export as rx
from tests.tools.tables import table

SECONDS = 5
MEGABYTES = 300  # beside the 150 that the libraries take
ADDRESSES = 3 << 30

_HEAD = '<ir_version: 9, opset_import: ["" : 18, "f" : 1]>'
TABLE: dict[str, Any] = table(__file__)
_STORED = TABLE["stored"]

_PAIR = "v1 = Concat<axis = 0>(one1, one1) "
MAKERS = {
    **TABLE["makers"],
    "Concat": " ".join(
        f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(44)
    ).replace("(v0, v0)", "(one1, one1)") + " w = Identity(v44)",
    "sum of a column and a row": _PAIR + " ".join(
        f"a{i} = Unsqueeze(v{i}, ax) s{i} = Add(a{i}, v{i}) v{i + 1} = Reshape(s{i}, ax)"
        for i in range(1, 12)
    ) + " w = Identity(v12)",
    "MatMul": _PAIR + " ".join(
        f"a{i} = Unsqueeze(v{i}, ax) b{i} = Unsqueeze(v{i}, z1) s{i} = MatMul(a{i}, b{i}) "
        f"v{i + 1} = Reshape(s{i}, ax)"
        for i in range(1, 12)
    ) + " w = Identity(v12)",
    "sizes that square": "s0 = Shape(x) "
    + " ".join(f"s{i + 1} = Mul(s{i}, s{i})" for i in range(60))
    + " w = ConstantOfShape(s60)",
    "sizes that double": "s0 = Size(x) t0 = Unsqueeze(s0, z1) "
    + " ".join(f"t{i + 1} = Add(t{i}, t{i})" for i in range(70))
    + " w = Expand(one1, t70)",
}  # fmt: skip

_NORM = """ qs = Pow(h, two) qm = ReduceMean<keepdims = 1>(qs, ax) qa = Add(qm, e) qr = Sqrt(qa)
 qd = Div(h, qr)"""
_ARGUMENTS = ", ".join(["x", *(p.split("=")[0].split()[-1] for p in _STORED.split("},"))])


def _text(body: str, place: str = "main") -> str:
    frame = TABLE["places"][place].format(stored=_STORED, arguments=_ARGUMENTS, body=body)
    return f"{_HEAD} g {frame}"


def _norms(count: int, elements: int, dtype: str) -> str:
    """Norms of rows of different lengths: each is a site of its own for a proof."""
    rows = range(elements, elements - count, -1)
    names = [f"{dtype}[1, {n}] {{}}{n}" for n in rows]
    inputs, outputs = (", ".join(name.format(end) for name in names) for end in "xy")
    norm = """ s{n} = Mul(x{n}, x{n}) m{n} = ReduceMean(s{n}, ax) a{n} = Add(m{n}, e)
 r{n} = Sqrt(a{n}) y{n} = Div(x{n}, r{n})"""
    body = "".join(norm.replace("{n}", str(n)) for n in rows)
    stored = f"int64[1] ax = {{-1}}, {dtype} e = {{1}}"
    return f"{_HEAD} g ({inputs}) => ({outputs}) <{stored}> {{ {body} }}"


def attacks() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file."""
    for maker, text in MAKERS.items():
        for use, body in TABLE["uses"].items():
            once = ("row", "shape between", "unknown")
            for place in ("main",) if use in once else TABLE["places"]:
                model = parser.parse_model(_text(body.replace("{maker}", text), place))
                yield f"{maker}, {use}, {place}", model.SerializeToString()
    for levels in (20, 40, 60):
        text = _text("h = f.F0(x)" + _NORM + " y = Identity(qd)") + nested(levels)
        yield f"functions of functions, {levels}", parser.parse_model(text).SerializeToString()
    for count, elements in ((12, 2**18), (40, 2**14), (40, 2**16), (40, 64)):
        for dtype in ("float", "float16", "bfloat16", "double"):
            norms = parser.parse_model(_norms(count, elements, dtype)).SerializeToString()
            yield f"{count} norms of {elements}, {dtype}", norms


def nested(levels: int) -> str:
    """Return functions in text form that call the next one twice: 2 ** levels paths."""
    names = ["Neg" if i == levels else f"f.F{i}" for i in range(1, levels + 1)]
    return "".join(
        f' <domain: "f", opset_import: ["" : 18, "f" : 1]> F{i} (a) => (c) '
        f"{{ b = {name}(a) c = {name}(b) }}"
        for i, name in enumerate(names)
    )


def main() -> None:
    """Answer every STEP-th attack for every target, within limits: one line for each that takes
    too long or too much memory."""
    step, offset = (int(argument) for argument in sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    for name, data in itertools.islice(attacks(), offset, None, step):
        assert len(data) < 10_000, name
        for target in ("portable", "onnx", "ort"):
            start, before = time.process_time(), memory()
            try:
                rx.inspect(data, target=target)  # type: ignore[arg-type]
                rx.optimize(data, target=target, prove=True)  # type: ignore[arg-type]
            except rx.InputError:
                pass
            except BaseException as error:
                print(f"{name}, {target}: {type(error).__name__}: {str(error)[:200]}")
            seconds = time.process_time() - start
            if seconds > SECONDS or memory() > before + MEGABYTES:
                print(f"{name}, {target}: {seconds:.1f} s, {memory() - before} MB more")


def memory() -> int:
    """Return the most that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
