"""Reports to render, hostile ones too, and a reader that checks what a page consists of."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

from rmsnorm_export.compare.result import OutputComparison, Verification
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.runtime.metrics import ErrorMetrics

_VOID = {"br", "col", "hr", "input", "link", "meta", "wbr"}

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
"""What a file may hold as a name."""

PROOF = Proof(
    passed=True,
    reason="",
    cases=("random", "zeros"),
    max_ulp=2.0,
    mismatch=0.0625,
    max_abs=0.001,
    error_before=0.75,
    error_after=0.5,
    bound_ulp=3.0,
    runtime="onnxruntime 9.9 (CPU) and numpy",
    ulp_histogram=(("0", 90_000), ("1", 1234), ("2", 7)),
)


def chain(names: tuple[str, ...] = (), op: str = "Mul") -> Drawing:
    """x -> Pow -> ReduceMean -> Mul with x and a gain; ``names`` take the place of its names."""

    def name(index: int, default: str) -> str:
        return names[index % len(names)] if names else default

    values = (
        DrawnValue(name(0, "x"), "float16", "[1, seq, 64]", "x"),
        DrawnValue(name(1, "two"), "float16", "[]", "", "2"),
        DrawnValue(name(2, "pow"), "float16", name(3, "[1, seq, 64]")),
        DrawnValue(name(4, "mean"), "float16", "[1, seq, 1]"),
        DrawnValue(name(5, "w"), "float16", "[64]", "scale"),
        DrawnValue(name(6, "y"), "float16", "[1, seq, 64]", "y"),
    )
    before = Subgraph(
        values,
        (
            DrawnNode("Pow", name(7, "n0"), (), (0, 1), (2,)),
            DrawnNode("ReduceMean", name(8, "n1"), (("axes", name(9, "[-1]")),), (2,), (3,)),
            DrawnNode(name(10, op), name(11, "n2"), (), (3, 0, 4), (5,)),
        ),
    )
    after = Subgraph(
        (values[0], values[4], values[5]),
        (DrawnNode("RMSNorm", name(12, "norm"), (("epsilon", "1e-06"),), (0, 1), (2,)),),
    )
    return Drawing(name(13, "layers.0.norm"), before, after)


SITE = Site(
    name="model.layers.0.norm/RMSNorm",
    op="RMSNorm",
    nodes=("/layers.0/Pow", "/layers.0/ReduceMean", "/layers.0/Mul"),
    spelling="Pow ReduceMean Mul",
    numerics="exact",
    dtype="float16",
    n=64,
    epsilon=1e-6,
    scope="main",
    attributes={"scale_before_cast": 1},
    notes=("a note",),
    proof=PROOF,
    module="model.layers.0.norm",
    drawing=0,
)
REFUSED = Refusal(
    node="/head/Add",
    op="Add",
    reason="epsilon-not-constant",
    message="epsilon is not a constant",
    found="the graph input eps",
    hint="make it an initializer",
    scope="main",
)
ALIKE = dataclasses.replace(
    REFUSED, node="/head/Sub", reason="layer-norm", message="a LayerNorm", kind="look-alike"
)


def sites(count: int) -> tuple[Site, ...]:
    """Sites that differ in every column of the table."""
    return tuple(
        dataclasses.replace(
            SITE,
            name=f"model.layers.{i}.norm/RMSNorm",
            module=f"model.layers.{i}.norm",
            nodes=tuple(f"/model/layers.{i}/norm/{op}_{i}" for op in SITE.spelling.split()),
            op=("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")[i % 3],
            numerics=("exact", "reordered", "upcast")[i // 3 % 3],
            dtype=("float16", "float32")[i // 9 % 2],
            n=None if i % 7 == 3 else 64 * (1 + i % 5),
            proof=dataclasses.replace(
                PROOF, max_ulp=float(i % 4), ulp_histogram=(("0", 90_000 + i), ("1", i), ("2", 7))
            ),
        )
        for i in range(count)
    )


def report(count: int = 20, **changes: object) -> Report:
    """A report of ``count`` fused sites, one kept, one refused, one look-alike."""
    made = Report(
        source="model.onnx",
        target="portable",
        numerics="upcast",
        fused=sites(count),
        kept=(dataclasses.replace(SITE, name="kept", proof=None),),
        refused=(REFUSED, ALIKE),
        opset_before=17,
        opset_after=18,
        nodes_before=1234,
        nodes_after=1000,
        notes=("raised from opset 17 to 18",),
        seconds=0.5,
        functions=2,
        drawings=(chain(),),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def hostile_report() -> Report:
    """Every text of a report is one of ``HOSTILE``, each of them once at least."""
    count = len(HOSTILE)

    def text(index: int) -> str:
        return HOSTILE[index % count]

    fused = tuple(
        dataclasses.replace(
            SITE,
            name=text(i),
            op=text(i + 1),
            nodes=(text(i), text(i + 2)),
            spelling=text(i + 3),
            dtype=text(i + 4),
            scope=text(i + 5),
            module=text(i + 6),
            notes=(text(i + 7),),
            attributes={text(i + 8): text(i + 9)},
            drawing=i,
            proof=dataclasses.replace(
                PROOF, passed=i % 2 == 0, reason=text(i), runtime=text(i + 1), cases=(text(i + 2),)
            ),
        )
        for i in range(count)
    )
    refused = tuple(
        Refusal(
            node=text(i),
            op=text(i + 1),
            reason=text(i + 2),
            message=text(i + 3),
            found=text(i + 4),
            hint=text(i + 5),
            scope=text(i + 6),
            kind=("norm", "look-alike")[i % 2],  # type: ignore[arg-type]
        )
        for i in range(count)
    )
    drawings = tuple(chain(HOSTILE[i:] + HOSTILE[:i]) for i in range(count))
    return report(
        0, source=HOSTILE[3], fused=fused, kept=fused[:2], refused=refused, notes=HOSTILE,
        drawings=drawings,
    )  # fmt: skip


METRICS = ErrorMetrics(
    max_abs=0.002,
    max_rel=0.1,
    max_ulp=90.0,
    mean_ulp=0.5,
    ulp_histogram=(("0", 800), ("1", 200), ("2", 3), ("3-4", 0), ("5-8", 1), ("inf", 2)),
    mismatch=0.2,
    cosine=0.9999999,
    nan_inf_agree=True,
    shape=(1, 16, 64),
    dtype="float16",
)


def verification(names: tuple[str, ...] = ("logits", "state")) -> Verification:
    """A comparison of which the last output failed."""
    outputs = tuple(
        OutputComparison(
            name, METRICS, 0.04, None, name != names[-1], "" if name != names[-1] else "too far"
        )
        for name in names
    )
    return Verification(
        passed=False,
        reason=f"{names[-1]}: too far",
        outputs=outputs,
        runtime="onnxruntime 9.9 (CPU)",
        optimized=(False, True),
        inputs=names,
        source=names[0],
        notes=names,
    )


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order.

    Attributes:
        elements: (name, attributes) in order.
        text: what is between tags, scripts and styles apart.
        scripts: contents of script elements; styles likewise.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.labelled = 0
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag in ("input", "select", "textarea"):
            assert "label" in self.open, f"a field without a label: {attrs}"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": self.styles}.get(inside, self.texts).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]}")

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [str(a[name]) for _, a in self.elements if name in a]
