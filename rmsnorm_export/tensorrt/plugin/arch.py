"""CUDA architectures: of the GPUs at hand, of the compiler, and as people write them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from rmsnorm_export.errors import UsageError
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.process import run_program

DEFAULT = ("75", "80", "86", "87", "89", "90", "100", "110", "120")
"""Built for where no GPU says otherwise; as in plugins/CMakeLists.txt."""

VERSION_TIMEOUT = 60
"""Seconds for a program to say its version, or what it can do."""

_ARCH = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)|(\d{1,2})\.(\d)([af]?)")

Arch = str | Sequence[str | int] | None


def parse(arch: Arch) -> tuple[str, ...] | None:
    """The architectures as CMake names them: ``"sm_90,10.0"`` is ("90", "100").

    Args:
        arch: names with commas, or a sequence of them; None, ``native`` (the GPUs at hand) and
            ``all`` (the defaults) are left to ``choose_architectures``: None, None, ``DEFAULT``.

    Raises:
        UsageError: a name is no architecture.
    """
    if arch is None or arch == "native":
        return None
    if arch == "all":
        return DEFAULT
    names = arch.split(",") if isinstance(arch, str) else [str(name) for name in arch]
    architectures: list[str] = []
    for name in map(str.strip, names):
        match = _ARCH.fullmatch(name.lower())
        if match is None:
            raise UsageError(
                "An architecture cannot be understood.",
                found=repr(name),
                fix="write it as 90, sm_90 or 9.0; several with commas; native; all",
            )
        digits, suffix, major, minor, dotted = match.groups()
        architectures.append(digits + suffix if digits else f"{major}{minor}{dotted}")
    return tuple(dict.fromkeys(architectures))


def of_gpus() -> tuple[str, ...]:
    """The architectures of the GPUs that ``nvidia-smi`` lists, () without any."""
    known = [gpu.capability for gpu in gpus() if re.fullmatch(r"\d+\.\d", gpu.capability)]
    return tuple(dict.fromkeys(name.replace(".", "") for name in known))


def of_compiler(nvcc: str) -> tuple[str, ...]:
    """The architectures that ``nvcc`` can compile for; () when it does not say."""
    try:
        done = run_program([nvcc, "--list-gpu-arch"], VERSION_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = done.stdout.split() if done.returncode == 0 else []
    return tuple(line.removeprefix("compute_") for line in lines if line.startswith("compute_"))


def choose_architectures(arch: Arch, nvcc: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to build for, and what is to be said about the choice.

    Raises:
        UsageError: the compiler does not know an architecture that was asked for, or the GPU's.
    """
    chosen, known = parse(arch), of_compiler(nvcc)
    notes: tuple[str, ...] = ()
    origin = "asked for"
    if chosen is None:
        chosen, origin = of_gpus(), "of the GPU at hand"
        if not chosen:
            chosen = tuple(name for name in DEFAULT if not known or name in known)
            left = ", ".join(name for name in DEFAULT if name not in chosen)
            notes = (f"no GPU was found: built for {', '.join(chosen)}; --arch chooses others",)
            notes += (f"this nvcc does not know {left}: CUDA 13 does",) if left else ()
    unknown = [name for name in chosen if known and name.rstrip("af") not in known]
    if unknown:
        raise UsageError(
            f"This nvcc cannot compile for an architecture {origin}.",
            found=f"{', '.join(unknown)}; {nvcc} knows {', '.join(known)}",
            fix="leave it out of --arch, or give a newer CUDA toolkit with --cuda DIR",
        )
    return chosen, notes
