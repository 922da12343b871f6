"""Runtimes that run our files: the facts of ``facts.json``, one row per runtime and first version.

A row tells which forms of a norm load and give the right numbers besides the standard operators,
and which target is chosen for ``--for``. ``operators`` there holds what came of loading ONNX's own
tests of each operator in the runtimes that were installed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.native import SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import BFLOAT16, FLOAT16, HALF_TYPES
from rmsnorm_export.printable import did_you_mean
from rmsnorm_export.runtime.support import FACTS

Evidence = Literal["run", "measured", "read"]
"""``run`` by the tests; ``measured`` by hand on 2026-11-22; ``read`` in documentation, not run."""

FUNCTIONS = "model-local functions"
"""The form of the portable target."""


class CudaProvider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """ONNX Runtime's CUDA provider from one version to the next row's.

    Read from the published libraries without a GPU: the provider itself ran on a stand-in for CUDA
    that computes nothing (``tests/tools/cuda``), and said which nodes it takes and which kernels it
    launches. Whether a residual sum is squared in float32 stands in the machine code of its kernel.

    Attributes:
        since, seen: as in ``Consumer``.
        least_row: elements of the shortest row that it normalises.
        bfloat16: operators of a norm that it runs in that type.
        float32_sums: it rounds a residual sum to the type of X and squares it in float32; if not,
            half types are squared, summed and divided in the half type, epsilon as well.
        lacks: ONNX's operators without a kernel in the newest version that was seen, ``Cos-22``
            with the version; they run on the CPU.
    """

    since: str
    seen: tuple[str, ...]
    least_row: int
    bfloat16: tuple[str, ...]
    float32_sums: bool
    lacks: str = ""


class Consumer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A runtime from one version to the next row's.

    Attributes:
        name: as users write it.
        since: first version that the row stands for.
        seen: versions on which it was seen.
        evidence: how its facts are known.
        opset, ir: newest version of the default domain, and of the format, that it loads; 0: it
            sets no limit of its own.
        forms: of a norm that run: ``FUNCTIONS`` and names of operators.
        vectors: it runs a norm node whose X has one axis.
        half_sums: it runs a norm and its residual sum as one node in float16, too.
        cuda: what its CUDA provider runs, where it is asked for; the rest runs on the CPU.
        target: written for it.
        why: for this target.
    """

    name: str
    since: str
    seen: tuple[str, ...]
    evidence: Evidence
    opset: int = 0
    ir: int = 0
    forms: tuple[str, ...] = ()
    vectors: bool = True
    half_sums: bool = True
    cuda: CudaProvider | None = None
    target: Literal["portable", "onnx", "ort", "plain"]
    why: str

    @property
    def source(self) -> str:
        """Return where the facts come from, half a sentence."""
        words = {"run": "run by the tests on", "measured": "measured on", "read": "read for"}
        known = f"{words[self.evidence]} {', '.join(self.seen)}"
        if self.cuda is None:
            return known
        return f"{known}; CUDA's part read in the library of {', '.join(self.cuda.seen)}, not run"

    @property
    def label(self) -> str:
        """Return its name and first version, e.g. ``onnxruntime-gpu 1.23``."""
        return f"{self.name if self.cuda is None else _GPU} {self.since}"

    def lacks_sum(self, element_type: int | None) -> str:
        """Return why it runs no residual sum in the node of a norm of this type, or ""."""
        label = self.label
        if SKIP_SIMPLIFIED not in self.forms:
            return f"{label} has no such operator"
        if element_type == FLOAT16 and not self.half_sums:
            return f"{label} loses the scale of such a node in float16"
        if self.cuda is None or element_type not in HALF_TYPES:
            return ""
        name = "float16" if element_type == FLOAT16 else "bfloat16"
        if element_type == BFLOAT16 and SKIP_SIMPLIFIED not in self.cuda.bfloat16:
            return f"the CUDA provider of {self.cuda.since} has no such kernel for {name}"
        if not self.cuda.float32_sums:
            return f"the CUDA provider of {self.cuda.since} squares the sum in {name}"
        return ""

    def has_operator(self, domain: str, operator: str) -> bool | None:
        """Return whether it has an operator; None: not known of all its versions in the row.

        Of a domain whose operators were all listed it has no others; any other domain may be that
        of a plugin or a library.
        """
        answers = set()
        for seen in self.seen:
            tried = _TRIED.get(f"{self.name}@{seen}", {})
            name = qualified(domain, operator)
            takes, listed = tried.get("takes", ()), name in tried.get("lacks", ())
            if domain in tried:
                name, takes, listed = operator, tried[domain], True
            answers.add(name in takes if name in takes or listed else None)
        return answers.pop() if len(answers) == 1 else None

    def has_kernel(self, operator: str, version: int) -> bool:
        """Return whether no version of the row is known to lack a kernel for ONNX's operator.

        Args:
            operator: of the default domain.
            version: of the operator: the opset that changed it last.
        """
        labels = (f"{self.name}@{seen}" for seen in self.seen)
        lacking = (_TRIED.get(label, {}).get("no kernel", ()) for label in labels)
        return not any(f"{operator}-{version}" in names for names in lacking)

    @property
    def tried(self) -> bool:
        """Return whether ONNX's own tests of its operators were run in it."""
        return any("lacks" in _TRIED.get(f"{self.name}@{seen}", ()) for seen in self.seen)

    def unknown(self, operators: Iterable[tuple[str, str]]) -> list[str]:
        """Return names of those of the (domain, operator) that are not known of it.

        Where none of ONNX's own operators was tried those are not among them.
        """
        return sorted(
            qualified(domain, operator)
            for domain, operator in operators
            if (self.tried or domain) and self.has_operator(domain, operator) is None
        )


def qualified(domain: str, operator: str) -> str:
    """Name an operator, with its domain where that is not ONNX's own."""
    return f"{domain}.{operator}" if domain else operator


@dataclasses.dataclass(frozen=True, slots=True)
class RunsIn:
    """A runtime and a file that it runs, as far as the table of runtimes knows.

    Attributes:
        runtime: its name.
        since: first version of which this is known; "" where the newest does not run it.
        versions: all that the table knows.
        reason: why the newest does not run it; "" where it does.
        evidence: how it is known, as in ``Consumer``.
        unknown: facts that are not known of its newest version, half a sentence, or "".
        perhaps: it is not known to have every operator of the file that is no norm.
    """

    runtime: str
    since: str
    versions: str
    reason: str
    evidence: Evidence
    unknown: str = ""
    perhaps: bool = False


CONSUMERS = msgspec.convert(FACTS["rows"], tuple[Consumer, ...])
"""Of one runtime in the order of its versions."""

BY_NAME = {
    name: tuple(row for row in CONSUMERS if row.name == name)
    for name in dict.fromkeys(row.name for row in CONSUMERS)
}

ENGINES = {package: engine for engine, packages in FACTS["engines"].items() for package in packages}
"""Package -> the engine that it brings, whose facts hold for it."""

_TRIED = {
    label: {key: frozenset(names.split()) for key, names in row.items()}
    for label, row in FACTS["operators"].items()
}
"""``runtime@version`` -> ``takes``, ``lacks``, ``no kernel`` and domains -> operators.

Those without a kernel are named with their version, ``RoiAlign-22``, and are no functions: ONNX
Runtime's CPU provider registers none that covers it (``get_all_opkernel_def`` of its module; for
-node and -web that of Python's package of the same version)."""

NO_BFLOAT16 = frozenset(FACTS["bfloat16"]["lacks"].split())
"""Operators that ONNX Runtime's CPU provider does not run in bfloat16, as far as they were tried:
no version that was seen loads ONNX's own tests of them in that type."""

CUDA_PROVIDERS = msgspec.convert(FACTS["cuda"], tuple[CudaProvider, ...])
"""In the order of their versions."""

_GPU = "onnxruntime-gpu"
"""The package whose rows are those of its engine, with the CUDA provider beside them."""

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*", re.ASCII)


def consumer(text: str) -> Consumer:
    """Return the row for ``NAME`` or ``NAME@VERSION``; without a version, the newest.

    Raises:
        UsageError: there is no such runtime, or the version was not seen: it is older than the
            first row, or newer than what the last was seen on.
    """
    name, at, version = text.strip().lower().partition("@")
    known = BY_NAME.get(name) or BY_NAME.get(ENGINES.get(name, ""), ())
    providers = CUDA_PROVIDERS if name == _GPU else ()
    asked = version if at else (providers or known)[-1].seen[-1] if known else ""
    row, provider = _row(known, asked), _row(providers, asked)
    if row is None or (providers and provider is None):
        what = f"The table of runtimes has no such {'version' if known else 'name'}."
        listed = ", ".join(f"{one} ({versions(rows)})" for one, rows in BY_NAME.items())
        hint = "" if known else did_you_mean(name, BY_NAME)
        fix = f"{hint}in the table are {listed}"
        if known:
            range_ = versions(providers or known)
            fix = f"give {name} alone for the newest, or {name}@VERSION: {range_}"
        fix += "; for another, --target plain --opset N writes the operators of opset N alone"
        if untried := FACTS["untried"].get(name.removeprefix("onnxruntime-")):
            opset = f" --opset {untried['opset']}" if untried["opset"] else ""
            fix = f"--target plain{opset}; not tried, but {untried['says']}"
        raise UsageError(what, found=repr(text[:100]), fix=fix)
    return row if provider is None else msgspec.structs.replace(row, cuda=provider)


_Facts = TypeVar("_Facts", Consumer, CudaProvider)


def _row(rows: tuple[_Facts, ...], version: str) -> _Facts | None:
    """Return the row for a version; None where it is older or newer than what was seen."""
    asked = _parts(version)
    fitting = [row for row in rows if _parts(row.since) <= asked]
    newest = _parts(rows[-1].seen[-1]) if fitting else ()
    return fitting[-1] if fitting and asked[: len(newest)] <= newest else None


def _parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; () of any other text."""
    return tuple(map(int, version.split("."))) if _VERSION.fullmatch(version) else ()


def versions(rows: Sequence[Consumer] | Sequence[CudaProvider]) -> str:
    """Return the range that rows of one runtime stand for, e.g. ``1.15 to 1.31.1``."""
    first, last = rows[0].since, rows[-1].seen[-1]
    return first if first == last else f"{first} to {last}"
