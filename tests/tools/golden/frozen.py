"""What a run of ``optimize`` gives, in short, and the text files that hold it for every model.

A file for each part of the catalogue, and in it for each model

    NAME SOURCE
      RUN RUN BYTES
        what these runs report, a line for each site and refusal

with digests of the source and of the bytes that the runs write.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import rmsnorm_export as rx
from rmsnorm_export.system.files import write_whole
from tests.tools.golden.models import Model

FROZEN = Path(__file__).parent / "frozen"
CORPUS = Path(__file__).parent / "corpus"

RUNS: dict[str, dict[str, Any]] = {
    "portable": {"target": "portable"},
    "onnx": {"target": "onnx"},
    "ort": {"target": "ort"},
    "plain": {"target": "plain"},
    "exact": {"target": "portable", "numerics": "exact"},
    "upcast": {"target": "portable", "numerics": "upcast"},
}
"""The runs of every model: the targets, and what other limits of rounding let through."""

LONGEST = 1200
VERSIONS = "versions.txt"


def outcome(model: Model, run: str) -> tuple[str, str]:
    """Return the SHA-256 of the bytes that a run writes, in short, and its readable report."""
    try:
        result = rx.optimize(model.source, **{**model.options, **RUNS[run]})
        data = result.to_bytes(weights="reference")
    except rx.Error as error:
        return "-", f"{type(error).__name__} {int(error.exit_code)}"
    except Exception as error:  # of another package: a defect, but frozen as well
        return "-", f"not caught: {type(error).__name__}"
    return _short(data, 12), _readable(result.report)


def _short(data: bytes, length: int) -> str:
    return hashlib.sha256(data).hexdigest()[:length]


def _readable(report: rx.Report) -> str:
    """Return one line for each site and refusal, without wordings, times, paths and versions."""
    lines = [_site("fused", site) for site in report.fused]
    lines += [_site("kept", site) for site in report.kept]
    for word, refusals in (("refused", report.refused), ("apart", report.unfolded)):
        texts = (f"{r.node} ({r.op}): {r.reason} [{r.kind}]{_scope(r.scope)}" for r in refusals)
        lines += [f"{word} {text}" for text in texts]
    lines.append(
        f"opset {report.opset_before}>{report.opset_after}"
        f" nodes {report.nodes_before}>{report.nodes_after} functions {report.functions}"
    )
    text = "\n".join(ascii(line)[1:-1] for line in lines)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... {_short(text.encode(), 12)}"


def _site(word: str, site: rx.Site) -> str:
    flags = [name for name in ("residual", "quantized", "rotary") if getattr(site, name)]
    attributes = [f"{name}={value}" for name, value in sorted(site.attributes.items())]
    facts = [site.op, site.numerics, site.dtype, f"n={site.n}", f"eps={site.epsilon:.9g}"]
    return " ".join([word, f"{site.name}:", *facts, *flags, *attributes]) + _scope(site.scope)


def _scope(scope: str) -> str:
    return "" if scope == "main" else f" in {scope}"


def entry(model: Model) -> str:
    """Return what all runs of a model give, as a file holds it."""
    runs: dict[tuple[str, str], list[str]] = {}
    for run in RUNS:
        runs.setdefault(outcome(model, run), []).append(run)
    lines = [f"{model.name} {_short(model.data, 6)}"]
    for (digest, report), names in runs.items():
        lines.append(f"  {' '.join(names)} {digest}")
        lines += (f"    {line}" for line in report.split("\n"))
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """What a folder holds.

    Attributes:
        versions: of what the bytes depend on beside this package, when all models were frozen.
        entries: by the name of the model.
    """

    versions: dict[str, str]
    entries: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Frozen:
        """Read what ``write`` wrote."""
        pairs = (line.split() for line in (folder / VERSIONS).read_text("utf-8").splitlines())
        paths = (path for path in sorted(folder.glob("*.txt")) if path.name != VERSIONS)
        texts = (path.read_text("utf-8").removesuffix("\n") for path in paths)
        entries = [entry for text in texts for entry in re.split(r"\n(?! )", text)]
        return cls(dict(pairs), {e.split("\n")[0].rsplit(" ", 1)[0]: e for e in entries})

    def write(self, folder: Path) -> None:
        """Write a file for each part."""
        parts: dict[str, list[str]] = {}
        for name, text in self.entries.items():
            parts.setdefault(name.split("/")[0], []).append(text)
        for path in {*folder.glob("*.txt")} - {folder / f"{part}.txt" for part in parts}:
            path.unlink()
        for part, entries in parts.items():
            write_whole(folder / f"{part}.txt", "\n".join(entries) + "\n")
        versions = "".join(f"{name} {text}\n" for name, text in self.versions.items())
        write_whole(folder / VERSIONS, versions)

    def versions_here(self) -> dict[str, str]:
        """Return the versions of the same packages as they are installed."""
        return {name: importlib.metadata.version(name).split("+")[0] for name in self.versions}

    def other_versions(self) -> str:
        """Return the packages that have another version here; "" if none."""
        here = self.versions_here()
        changed = {name: text for name, text in self.versions.items() if text != here[name]}
        return ", ".join(f"{name} {text}, not {here[name]}" for name, text in changed.items())

    def change(self, name: str, now: str) -> None:
        """Hold what a model gives now; without any text, hold nothing of it."""
        if now:
            self.entries[name] = now
        else:
            del self.entries[name]

    def difference(self, name: str, now: str) -> str:
        """Return what is not as it was, by lines; "" if nothing."""
        before = self.entries.get(name, "")
        if before == now:
            return ""
        lines = difflib.unified_diff(before.splitlines(), now.splitlines(), n=2, lineterm="")
        word = ("gone" if not now else "changed") if before else "new"
        return "\n    ".join([f"{name}: {word}", *list(lines)[3:]])
