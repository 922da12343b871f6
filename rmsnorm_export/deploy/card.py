"""The model card, ``README.md``: what the model is, its versions, their files and proofs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmsnorm_export.deploy.packaged import PackagedModel
from rmsnorm_export.printable import one_line

_CARD = """\
# {name}

A model for Triton Inference Server, run by its {backend} backend. The server loads all versions.
{batching} -1 is any size.

| | name | type | shape |
| --- | --- | --- | --- |
{tensors}

With the folder above this one at `/models`, `{server}` serves it, and
`curl -f localhost:8000/v2/models/{name}/ready` succeeds then.
"""

_VERSION = """
## Version {version}

Made {made} by {tool} from {source} (sha256 `{sha256}`). Asked: {answers}.

| RMSNorms | what became of them |
| --- | --- |
{norms}

| file | sha256 |
| --- | --- |
{files}
"""


def card(versions: Sequence[PackagedModel]) -> str:
    """Return the card of a model; its inputs and outputs are those of the last version."""
    model = versions[-1]
    most = f"The leading axis is the batch; the server takes up to {model.max_batch}."
    loads = [version.load for version in versions if version.load]
    text = _CARD.format(
        name=model.name,
        backend=model.backend,
        batching=most if model.max_batch else "The server does not join requests into batches.",
        tensors=_rows(
            (way, _code(item.name), item.dtype, str(list(item.shape)))
            for way, items in (("input", model.inputs), ("output", model.outputs))
            for item in items
        ),
        server=" ".join(["tritonserver --model-repository=/models", *loads[-1:]]),
    )
    return text + "".join(map(_version, reversed(versions)))


def _version(model: PackagedModel) -> str:
    text = _VERSION.format(
        version=model.version,
        made=model.made,
        tool=model.tool,
        source=_code(model.source),
        sha256=model.source_sha256,
        answers=_prose(model.answers),
        norms=_rows((str(count), _prose(what)) for what, count in model.norms.items()),
        files=_rows((_code(path), _code(sha256)) for path, sha256 in model.files.items()),
    )
    return text + "".join(f"\n- {_prose(note)}" for note in model.notes)


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _prose(text: str) -> str:
    """Return text from outside as one line, without what Markdown or HTML would act on."""
    return one_line(text, 500).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """Return a name as code; what would end it is dropped."""
    name = one_line(text, 300).replace("`", "").replace("|", "\\|")
    return f"`{name}`"
