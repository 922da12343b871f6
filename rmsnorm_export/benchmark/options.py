"""What ``bench`` was asked for, checked before any work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rmsnorm_export.benchmark.peers import PEERS
from rmsnorm_export.benchmark.sessions import PROVIDERS, provider_class
from rmsnorm_export.benchmark.statistics import LEAST_ROUNDS
from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.runtime.session import onnxruntime

_PIP = 'pip install "rmsnorm-export[{}]"'
_BRINGS = {"cpu": "ort", "cuda": "ort-gpu", "tensorrt": "ort-gpu"}


def check_options(
    targets: Sequence[str],
    peers: Sequence[str],
    numerics: str,
    seconds: float,
    rounds: int | None,
    threads: int | None,
    peer_seconds: float,
) -> None:
    """Raise ``UsageError`` for an option that cannot be used as given."""
    _check_names("target", targets, TARGETS)
    _check_names("peer", peers, PEERS)
    _check_names("numerics", [numerics], NUMERICS_ORDER)
    if not targets and not peers:
        raise UsageError(
            "There is nothing to compare raw with.",
            found="neither a target nor a peer",
            fix=f"name some of {', '.join((*TARGETS, *PEERS))}",
        )
    for what, value in (("to measure", seconds), ("that a peer may take", peer_seconds)):
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(
                f"The time {what} must be a number above 0.",
                found=f"{value:g} seconds",
                fix="give some seconds",
            )
    if rounds is not None and rounds < LEAST_ROUNDS:
        raise UsageError(
            "Too few rounds for a 95 % interval.",
            found=f"{rounds} rounds",
            fix=f"give {LEAST_ROUNDS} or more; some hundred make the interval narrow",
        )
    if threads is not None and threads < 1:
        raise UsageError("At least one thread is needed.", found=f"{threads}", fix="give 1 or more")


def choose_providers(wanted: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The providers to measure on, and of those that were not asked for by name the absent ones.

    Args:
        wanted: by name; None: all that this ONNX Runtime has.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or lacks one that is wanted.
        UsageError: an unknown or repeated name.
    """
    present = onnxruntime().get_available_providers()
    here = tuple(name for name in PROVIDERS if provider_class(name) in present)
    if wanted is None:
        return here, tuple(name for name in PROVIDERS if name not in here)
    _check_names("provider", wanted, PROVIDERS)
    if not wanted:
        raise UsageError("No provider is named.", found="none", fix=f"use {', '.join(PROVIDERS)}")
    for name in wanted:
        if name not in here:
            raise provider_missing(name, f"this ONNX Runtime has {', '.join(present)}")
    return tuple(wanted), ()


def provider_missing(name: str, found: str) -> BackendMissingError:
    """The error for a provider that was asked for by name."""
    return BackendMissingError(
        f"The provider {name} is not available in ONNX Runtime.",
        found=found,
        fix=_PIP.format(_BRINGS[name]) + ("" if name == "cpu" else ", on a machine with its GPU"),
    )


def _check_names(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = tuple(known)
    for i, name in enumerate(names):
        if name not in known:
            raise UsageError(
                f"Unknown {what}.", found=repr(name), fix=f"use one of {', '.join(known)}"
            )
        if name in names[:i]:
            raise UsageError(f"A {what} is named twice.", found=name, fix="name it once")
