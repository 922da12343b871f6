"""Which operators a runtime has, beside those that are norms: what was tried, and what was not.

``operators.json`` holds what came of loading ONNX's own tests of each operator in the runtimes
that were installed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmsnorm_export.op.native import DEFAULT_DOMAINS, MICROSOFT_DOMAIN
from rmsnorm_export.runtime.consumers import Consumer

OPERATORS = Path(__file__).with_name("operators.json")


@functools.cache
def _tried() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """``runtime@version`` -> ``takes``, ``lacks`` and domains -> operators."""
    content = json.loads(OPERATORS.read_text(encoding="utf-8"))
    return {
        label: {key: frozenset(names.split()) for key, names in row.items()}
        for label, row in content.items()
    }


def has_operator(row: Consumer, domain: str, operator: str) -> bool | None:
    """Whether a runtime has an operator; None: not known of all its versions in the row."""
    answers = {_answer(row, seen, domain, operator) for seen in row.seen}
    return answers.pop() if len(answers) == 1 else None


def _answer(row: Consumer, version: str, domain: str, operator: str) -> bool | None:
    tried = _tried().get(f"{row.name}@{version}")
    if tried is None:
        return None
    if domain in DEFAULT_DOMAINS:
        return True if operator in tried["takes"] else False if operator in tried["lacks"] else None
    if domain == MICROSOFT_DOMAIN and domain in tried:
        return operator in tried[domain]
    return None


def unknown(row: Consumer, operators: Sequence[tuple[str, str]]) -> str:
    """Which of these (domain, operator) are not known of a runtime, half a sentence; "": none."""
    if not any(f"{row.name}@{seen}" in _tried() for seen in row.seen):
        return "its operators other than norms were not tried"
    names = [
        operator if domain in DEFAULT_DOMAINS else f"{domain}.{operator}"
        for domain, operator in operators
        if has_operator(row, domain, operator) is None
    ]
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"not known whether it has {', '.join(sorted(names)[:5])}{more}"
