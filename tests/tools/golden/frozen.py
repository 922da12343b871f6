"""What a run of ``optimize`` gives, in short, and the file that holds it for every model."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.metadata
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import rmsnorm_export as rx
from tests.tools.golden.models import Model

FROZEN = Path(__file__).parent / "frozen.json.xz"
CORPUS = Path(__file__).parent / "corpus.json.xz"

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


def public_names() -> list[str]:
    """Return the package's public names."""
    return list(rx.__all__)


def _versions(*, exported: bool) -> dict[str, str]:
    """Return the versions of what the bytes depend on beside this package."""
    packages = ["onnx", "onnx-ir", *(("torch", "transformers", "onnxscript") if exported else ())]
    return {name: importlib.metadata.version(name).split("+")[0] for name in packages}


@dataclasses.dataclass(frozen=True)
class Frozen:
    """The contents of a frozen file.

    Attributes:
        versions: with which it was made.
        public: names of the package.
        reports: readable reports by their digests.
        models: for each model the digest of its source, then ``BYTES:REPORT`` for each of ``RUNS``;
            ``=`` is that of the first run.
    """

    versions: dict[str, str]
    public: list[str]
    reports: dict[str, str]
    models: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Frozen:
        """Read a file that ``freeze`` wrote."""
        return cls(**json.loads(lzma.decompress(path.read_bytes())))

    def other_versions(self) -> str:
        """Return the packages that have another version here; "" if none."""
        here = _versions(exported="torch" in self.versions)
        return ", ".join(
            f"{k} {v}, not {here[k]}" for k, v in self.versions.items() if v != here[k]
        )

    def summary(self) -> str:
        """Return how much is held."""
        return f"{len(self.models)} models x {len(RUNS)} runs, {len(self.reports)} reports"

    def differences(self, model: Model) -> Iterator[str]:
        """Yield what is not as it was, with the lines of both reports."""
        if model.name not in self.models:
            yield f"{model.name}: a new model"
            return
        source, *entries = self.models[model.name].split()
        if source != _short(model.data, 6):
            yield f"{model.name}: the model itself changed"
        first = entries[0]
        for run, entry in zip(RUNS, entries, strict=True):
            old_bytes, old_key = (first if entry == "=" else entry).split(":")
            new_bytes, text = outcome(model, run)
            old = self.reports[old_key]
            parts = [("bytes", old_bytes, new_bytes), ("report", old, text)]
            if changed := " and ".join(name for name, before, now in parts if before != now):
                lines = difflib.ndiff(old.splitlines(), text.splitlines())
                shown = [line for line in lines if line[0] != "?"]
                yield "\n    ".join([f"{model.name}, {run}: {changed} changed", *shown])


def freeze(models: Iterable[Model], path: Path, *, exported: bool) -> Frozen:
    """Run all models and write what they give."""
    frozen = Frozen(_versions(exported=exported), public_names(), {}, {})
    for model in models:
        assert model.name not in frozen.models, model.name
        entries = []
        for run in RUNS:
            digest, text = outcome(model, run)
            key = _short(text.encode(), 8)
            assert frozen.reports.setdefault(key, text) == text
            entries.append(f"{digest}:{key}")
        rest = ["=" if entry == entries[0] else entry for entry in entries[1:]]
        frozen.models[model.name] = " ".join([_short(model.data, 6), entries[0], *rest])
    path.write_bytes(lzma.compress(json.dumps(dataclasses.asdict(frozen)).encode(), preset=9))
    return frozen
