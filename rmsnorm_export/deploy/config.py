"""``config.pbtxt``, as text of Triton's model_config.proto, and the card of a model.

Both are templates of Jinja2 beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.text_encoding import CEscape
from jinja2 import Environment, PackageLoader, StrictUndefined

from rmsnorm_export.deploy.packaged import MODEL_FILE, PackagedModel
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.printable import one_line

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


def config_text(name: str, model: ServedModel, max_batch: int, kind: str, kernels: str) -> str:
    """Return the text of a ``config.pbtxt``.

    Every version in the folder is served: by default the server would serve the latest only, and
    a new version would take the place of the one that clients use.

    Args:
        name, model: the model.
        max_batch: most requests in a batch; 0: none.
        kind: ``gpu`` or ``cpu``.
        kernels: where the server finds a library of kernels for ONNX Runtime, or "".
    """
    facts = {"name": name, "model": model, "file": MODEL_FILE[model.backend], "kind": kind}
    facts |= {"max_batch": max_batch, "delay": QUEUE_DELAY_US, "kernels": kernels}
    return _rendered("config.pbtxt", facts)


def card(versions: Sequence[PackagedModel]) -> str:
    """Return the card of a model, ``README.md``; its tensors are those of the last version."""
    loads = [version.load for version in versions if version.load]
    server = " ".join(["tritonserver --model-repository=/models", *loads[-1:]])
    facts = {"model": versions[-1], "versions": versions, "server": server}
    return _rendered("card.md", facts)


def _rendered(name: str, facts: Mapping[str, object]) -> str:
    environment = Environment(
        loader=PackageLoader("rmsnorm_export.deploy", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quoted": _quoted, "plain": _plain}
    return environment.get_template(f"{name}.j2").render(facts)


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format."""
    return f'"{CEscape(text.encode("utf-8", "surrogateescape"), as_utf8=False)}"'


def _plain(text: str) -> str:
    """Return a text without what Markdown would act on in a table."""
    return one_line(text, 300).replace("`", "").replace("|", "\\|")
