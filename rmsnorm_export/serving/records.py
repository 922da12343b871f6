"""Reports that go with a package: the proof record of ``optimize`` and records of benchmarks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.printable import number, quoted, short
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import Unfit, decode, document, from_json, to_dict
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.result import PackagedNorm
from rmsnorm_export.serving.served_model import ServedModel, refused_norms
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.provenance import FileState, Provenance
from rmsnorm_export.system.reading import read_text

_UNREADABLE = "A report cannot be read."
_UNREADABLE_FIX = "give a JSON file that --report FILE.json or --format json wrote"


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkDocument:
    """A benchmark's JSON document, the name of its file, and its text as it was read."""

    name: str
    text: str
    body: dict[str, Any]


def read_report(path: StrPath, subject: ServedModel) -> tuple[Report, str]:
    """A report of ``optimize --report FILE.json`` on the packaged model, and its text.

    Raises:
        InputError: the file cannot be read or is no report.
        UsageError: it is the report of another model.
    """
    text = read_text(Path(os.fspath(path)), _UNREADABLE, fix=_UNREADABLE_FIX)
    report = from_json(text, Report)
    names = {node.name for graph in all_graphs(subject.loaded.model) for node in graph}
    if missing := [site.name for site in report.fused if site.name not in names]:
        raise _of_another(
            f"{short(str(path))} has the norm {quoted(missing[0])}, the model has not"
        )
    written = [file for file in _outputs(text) if file.path.lower().endswith(".onnx")]
    model = subject.loaded.path
    if written and model is not None and sha256_of(model) not in {f.sha256 for f in written}:
        raise _of_another(f"{short(model.name)} is not {quoted(written[0].path)} as it was written")
    return report, text


def _outputs(text: str) -> tuple[FileState, ...]:
    """The files that a report was made with; () where it does not say."""
    made = _made(parse_json(text))
    return () if made is None else made.outputs


def _made(body: dict[str, Any]) -> Provenance | None:
    try:
        made: Provenance = decode(body["provenance"], Provenance)
    except (KeyError, Unfit):
        return None
    return made


def with_copies(text: str, copies: Mapping[str, str]) -> str:
    """The text of a report for a place where copies of some of its files are.

    Args:
        text: a JSON document that was read.
        copies: as of ``Provenance.with_copies``.
    """
    body = parse_json(text)
    made = _made(body)
    if made is None:
        return text
    body["provenance"] = to_dict(made.with_copies(copies))
    return document(str(body.pop("kind")), body)


def _of_another(found: str) -> UsageError:
    return UsageError(
        "The report is of another model.",
        found=found,
        fix="give what optimize --report wrote when it made this model",
    )


def read_benchmarks(paths: Sequence[StrPath]) -> tuple[BenchmarkDocument, ...]:
    """Records of benchmarks: JSON documents with a header, as ``--format json`` prints them.

    Raises:
        InputError: a file cannot be read or is no such document.
    """
    documents = []
    for path in paths:
        file = Path(os.fspath(path))
        text = read_text(file, _UNREADABLE, fix=_UNREADABLE_FIX)
        try:
            body = parse_json(text)
            if not isinstance(body, dict) or "kind" not in body or "schema_version" not in body:
                raise ValueError("no object with schema_version and kind")
        except ValueError as error:
            found = f"{short(str(file), 300)}: {short(str(error), 300)}"
            raise InputError(_UNREADABLE, found=found, fix=_UNREADABLE_FIX) from error
        documents.append(BenchmarkDocument(file.name, text, body))
    return tuple(documents)


def reported_norms(report: Report) -> tuple[PackagedNorm, ...]:
    """The norms with their numerics class and proof."""
    norms = (
        PackagedNorm(site.name, site.op, "one node", site.numerics, _proof_words(site.proof))
        for site in (*report.fused, *report.kept)
    )
    return (*norms, *refused_norms(report))


def merged(norms: Sequence[PackagedNorm], report: Report) -> tuple[PackagedNorm, ...]:
    """Norms of an engine, with what the report says of the nodes that they come from."""
    known = {norm.name: norm for norm in reported_norms(report)}
    return tuple(
        dataclasses.replace(norm, numerics=known[norm.name].numerics, proof=known[norm.name].proof)
        if norm.name in known
        else norm
        for norm in norms
    )


def _proof_words(proof: Proof | None) -> str:
    if proof is None:
        return ""
    if not proof.passed:
        return f"failed: {proof.reason}"
    return f"passed, {number(proof.max_ulp)} of {number(proof.bound_ulp)} ulp, {proof.runtime}"
