"""What runs our files: one row per runtime and first version, with what was seen of it.

A row tells which forms of a norm load and give the right numbers beside the standard operators,
and which target is chosen for ``--for``. ``tests/tools/runtimes`` installs the runtimes of the rows
that say ``run``; the tests hold every claim of these, in float32 and float16, and that the forms
which are not named are refused. The other rows were measured by hand once, or are read.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.native import (
    MICROSOFT_DOMAIN,
    RMS_NORMALIZATION,
    SIMPLIFIED,
    SKIP_SIMPLIFIED,
)
from rmsnorm_export.printable import did_you_mean

Evidence = Literal["run", "measured", "read"]
"""``run`` by the tests; ``measured`` by hand on 2026-11-22; ``read`` in documentation, not run."""

FUNCTIONS = "model-local functions"
"""The form of the portable target."""

FORMS = (FUNCTIONS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A runtime from one version to the next row's.

    Attributes:
        name: as users write it.
        since: first version that the row stands for.
        seen: versions on which it was seen.
        evidence: how its facts are known.
        opset, ir: newest version of the default domain, and of the format, that it loads; 0: it
            sets no limit of its own.
        forms: of ``FORMS``, those that run.
        domains: further operator domains, of which it has operators.
        target: what is written for it.
        why: for this target.
    """

    name: str
    since: str
    seen: tuple[str, ...]
    evidence: Evidence = "run"
    opset: int = 0
    ir: int = 0
    forms: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    target: Literal["portable", "onnx", "ort", "plain"]
    why: str

    @property
    def source(self) -> str:
        """Where the facts come from, half a sentence."""
        words = {"run": "run by the tests on", "measured": "measured on", "read": "read for"}
        return f"{words[self.evidence]} {', '.join(self.seen)}"


@dataclasses.dataclass(frozen=True, slots=True)
class RunsIn:
    """Whether a runtime runs a file, as far as the table of runtimes knows.

    Attributes:
        runtime: its name.
        since: first version of which this is known; "" where the newest does not run it.
        versions: all that the table knows.
        reason: why the newest does not run it; "" where it does.
        evidence: how it is known, as in ``Consumer``.
        unknown: what is not known of its newest version, half a sentence; "" where all is.
    """

    runtime: str
    since: str
    versions: str
    reason: str
    evidence: Evidence
    unknown: str = ""


_ORT_FORMS = (FUNCTIONS, SIMPLIFIED, SKIP_SIMPLIFIED)
_ORT_DOMAINS = (MICROSOFT_DOMAIN, "ai.onnx.ml", "com.microsoft.nchwc", "ai.onnx.preview.training")
_FUSED = "one kernel a norm, residual sums in it"


def _ort(
    since: str,
    *seen: str,
    opset: int,
    ir: int,
    name: str = "onnxruntime",
    evidence: Evidence = "run",
) -> Consumer:
    known = (*_ORT_FORMS, RMS_NORMALIZATION) if opset >= 23 else _ORT_FORMS
    return Consumer(
        name=name,
        since=since,
        seen=seen,
        evidence=evidence,
        opset=opset,
        ir=ir,
        forms=known,
        domains=_ORT_DOMAINS,
        target="ort",
        why=_FUSED,
    )


CONSUMERS: tuple[Consumer, ...] = (
    Consumer(
        name="onnxruntime",
        since="1.15",
        seen=("1.15.1",),
        opset=18,
        ir=9,
        forms=(FUNCTIONS, SIMPLIFIED),
        domains=_ORT_DOMAINS,
        target="ort",
        why="one kernel a norm; residual sums stay Adds, for it has no kernel with them",
    ),
    _ort("1.16", "1.16.3", opset=19, ir=9),
    _ort("1.17", "1.17.3", opset=20, ir=9),
    _ort("1.18", "1.18.1", "1.19.2", "1.20.1", opset=21, ir=10),
    _ort("1.22", "1.22.1", opset=22, ir=10),
    _ort("1.23", "1.23.2", opset=23, ir=11),
    _ort("1.31", "1.31.1", opset=26, ir=13),
    _ort("1.32", "1.32.0", opset=28, ir=14),
    _ort("1.30", "1.30.0", opset=26, ir=13, name="onnxruntime-node"),
    Consumer(
        name="onnxruntime-web",
        since="1.14",
        seen=("1.14",),
        evidence="measured",
        opset=17,
        ir=8,
        forms=(FUNCTIONS,),
        domains=_ORT_DOMAINS,
        target="portable",
        why="it has no kernel for a residual norm",
    ),
    _ort("1.18", "1.18", "1.22", opset=21, ir=10, name="onnxruntime-web", evidence="measured"),
    _ort("1.23", "1.23", opset=23, ir=11, name="onnxruntime-web", evidence="measured"),
    _ort("1.30", "1.30.0", opset=26, ir=13, name="onnxruntime-web"),
    Consumer(
        name="tensorrt",
        since="10.8",
        seen=("10.8", "11.4"),
        evidence="read",
        forms=(FUNCTIONS,),
        target="portable",
        why="the plugin runs the node, and without it the parser takes the function",
    ),
    Consumer(
        name="tensorrt-rtx",
        since="1.7",
        seen=("1.7.1",),
        evidence="measured",
        forms=FORMS,
        target="portable",
        why="engines of every form are built; this one is the plugin's, too",
    ),
    Consumer(
        name="openvino",
        since="2026.4",
        seen=("2026.4.1",),
        forms=(RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED),
        domains=(MICROSOFT_DOMAIN,),
        target="plain",
        why="it fuses the plain operators into its RMS, at any opset",
    ),
    Consumer(
        name="opencv",
        since="5.0",
        seen=("5.0.0",),
        forms=(RMS_NORMALIZATION,),
        target="onnx",
        why="one layer a norm",
    ),
    Consumer(
        name="tract",
        since="0.23",
        seen=("0.23.9",),
        forms=(RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED),
        domains=(MICROSOFT_DOMAIN,),
        target="onnx",
        why="one standard operator a norm",
    ),
    Consumer(
        name="tvm",
        since="0.27",
        seen=("0.27.0",),
        forms=(RMS_NORMALIZATION,),
        target="onnx",
        why="nn.rms_norm, one a norm",
    ),
    Consumer(
        name="iree",
        since="3.13",
        seen=("3.13.0",),
        target="plain",
        forms=(SKIP_SIMPLIFIED,),
        why="it has no functions, and a norm as one operator only with a residual sum",
    ),
    Consumer(
        name="mnn",
        since="3.6",
        seen=("3.6.1",),
        evidence="measured",
        target="plain",
        why="it has no norm operator and no functions",
    ),
    Consumer(
        name="ncnn",
        since="1.0.20261020",
        seen=("1.0.20261020",),
        evidence="measured",
        forms=(FUNCTIONS, RMS_NORMALIZATION),
        target="onnx",
        why="pnnx makes its RMSNorm of each",
    ),
    Consumer(
        name="onnx-reference",
        since="1.23",
        seen=("1.23.2",),
        forms=(FUNCTIONS, RMS_NORMALIZATION),
        target="portable",
        why="it runs the definition in the file, at any opset",
    ),
)
"""Of one runtime in the order of its versions."""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def by_name() -> dict[str, tuple[Consumer, ...]]:
    """The rows of each runtime, oldest first."""
    names = dict.fromkeys(row.name for row in CONSUMERS)
    return {name: tuple(row for row in CONSUMERS if row.name == name) for name in names}


def consumer(text: str) -> Consumer:
    """The row for ``NAME`` or ``NAME@VERSION``; without a version, the newest.

    Raises:
        UsageError: there is no such runtime, or the version was not seen: it is older than the
            first row, or newer than what the last was seen on.
    """
    name, at, version = text.strip().lower().partition("@")
    rows = by_name().get(name, ())
    if not rows:
        raise UsageError(
            "There is no such runtime in the table.",
            found=repr(text[:100]),
            fix=did_you_mean(name, by_name().keys())
            + "the known ones are "
            + ", ".join(f"{name} ({versions(rows)})" for name, rows in by_name().items()),
        )
    if not at:
        return rows[-1]
    wanted: tuple[int, ...] = ()
    if all(part.isascii() and part.isdigit() and len(part) < 10 for part in version.split(".")):
        wanted = _parts(version)
    newest = _parts(rows[-1].seen[-1])
    fitting = [row for row in rows if _parts(row.since) <= wanted]
    if not fitting or wanted[: len(newest)] > newest:
        raise UsageError(
            f"This version of {name} is not in the table.",
            found=repr(text[:100]),
            fix=f"known are {versions(rows)}; without @VERSION the newest is taken",
        )
    return fitting[-1]


def versions(rows: tuple[Consumer, ...]) -> str:
    """The range that rows of one runtime stand for, e.g. ``1.15 to 1.31.1``."""
    first, last = rows[0].since, rows[-1].seen[-1]
    return first if first == last else f"{first} to {last}"
