"""Exporters of a decoder, each a command of its own: what it writes, weighs and takes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec.toml

from toolbox.command import module_environment

_TABLES = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
TOOLS: dict[str, str] = _TABLES["tools"]
COMMANDS: dict[str, str] = _TABLES["commands"]
Record = dict[str, Any]


def folder_of(name: str, place: Path) -> Path:
    """Return the folder of what an exporter of this name writes."""
    return place / name.replace(", ", "_").replace(" ", "_")


def commands(source: Path, place: Path, tools: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what each exporter is run by.

    Args:
        source: the model.
        place: of the folders.
        tools: commands like ``TOOLS``, in their place.
    """
    parts = {**tools, **_TABLES["ours"], "python": shlex.quote(sys.executable)}
    lists = {}
    for name, command in COMMANDS.items():
        for key, part in parts.items():
            command = command.replace(f"{{{key}}}", part)
        paths = {"source": source, "place": place, "out": folder_of(name, place)}
        lists[name] = [word.format(**paths) for word in shlex.split(command)]
    return lists


def run(words: list[str], out: Path, source: Path) -> Record:
    """Run an exporter; say how long it took, what memory it had, and what it wrote.

    Returns:
        ``megabytes`` of graphs and weights, the processor's ``export seconds`` and ``export
        gigabytes``; or ``detail``, its last words, where it failed.
    """
    shutil.rmtree(out, ignore_errors=True)  # of a run that was ended
    with tempfile.TemporaryFile("w+") as printed:
        try:
            child = os.posix_spawnp(
                words[0], words, module_environment() | {"OMP_NUM_THREADS": "1"},
                file_actions=[(os.POSIX_SPAWN_DUP2, printed.fileno(), one) for one in (1, 2)],
            )  # fmt: skip
        except OSError as error:
            return {"detail": f"{words[0]}: {error.strerror}"}
        _, status, used = os.wait4(child, 0)
        printed.seek(0)
        lines = printed.read().strip().splitlines() or ["it wrote nothing"]
    if status and not list(out.glob("*.onnx")):
        return {"detail": lines[-1][:200]}
    if not (out / "config.json").exists():
        shutil.copy(source / "config.json", out)
    files = [file for file in out.iterdir() if file.suffix in (".onnx", ".data")]
    return {
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "export seconds": used.ru_utime + used.ru_stime,
        "export gigabytes": used.ru_maxrss / 1e6,
        **({"detail": lines[-1][:200]} if status else {}),
    }


def _transformers(source: str, out: str, fusions: str) -> None:
    """Export by transformers' own exporter."""
    import transformers
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    from rmsnorm_export.decoder.inputs import sample_inputs

    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    inputs, config = sample_inputs(model, {}), OnnxConfig(dynamic=True, ort_fusions=fusions or None)
    OnnxExporter().export_for_generation(model, inputs, config).save_pretrained(out)


if __name__ == "__main__":
    _transformers(*sys.argv[1:])
