"""Exporters of a decoder, each a command of its own: what it writes, weighs and takes."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from toolbox.command import module_environment

OPTIMUM = "optimum-cli export onnx -m {source} --task text-generation-with-past {out}"
BUILDER = "python -m onnxruntime_genai.models.builder -i {source} -o {out} -p fp32 -e cpu -c {out}"
MOBIUS = "python -m mobius build --model {source} {out}"
STATIC = 512
_OURS = {
    "optimum": "--names optimum",
    "optimum, fused": "--names optimum --fusions cpu",
    "genai, fused": "--names genai --fusions cpu",
    "two graphs, fused": "--fusions cpu",
    f"static {STATIC}": f"--static-cache {STATIC}",
    f"static {STATIC}, fused": f"--static-cache {STATIC} --fusions cpu",
}
"""Forms of our export, by the options of the command."""
_QUANTIZED = ("genai, fused", "two graphs, fused")
"""Those that are quantized as well, by `optimize`."""
Record = dict[str, Any]


def folder_of(name: str, place: Path) -> Path:
    """Return the folder of what an exporter of this name writes."""
    return place / name.replace(", ", "_").replace(" ", "_")


def commands(
    source: Path, place: Path, *, optimum: str, builder: str, mobius: str
) -> dict[str, list[str]]:
    """Return what each exporter is run by, optimum's first.

    Args:
        source: the model.
        place: of the folders.
        optimum, builder, mobius: commands, with ``{source}`` and ``{out}`` left open.
    """
    own = f"{sys.executable} -m"
    export = f"{own} rmsnorm_export export {{source}} --task generation -o {{out}} -q"
    templates = {
        "optimum-cli": optimum,
        "builder": builder,
        "builder, int4": builder.replace("fp32", "int4"),
        "mobius": mobius,
        "transformers": f"{own} bench.lib.exporters {{source}} {{out}} ''",
        "transformers, its fusions": f"{own} bench.lib.exporters {{source}} {{out}} cpu",
        **{f"ours, {name}": f"{export} {options}" for name, options in _OURS.items()},
    }
    for name, kind in itertools.product(_QUANTIZED, ("int8", "int4")):
        before = shlex.quote(str(folder_of(f"ours, {name}", place)))
        quantize = f"{own} rmsnorm_export optimize {before} -o {{out}} -q --quantize {kind}"
        templates[f"ours, {name}, {kind}"] = quantize
    return {
        name: [
            word.replace("{source}", str(source)).replace("{out}", str(folder_of(name, place)))
            for word in shlex.split(text)
        ]
        for name, text in templates.items()
    }


def run(words: list[str], out: Path, source: Path) -> Record:
    """Run an exporter; say how long it took, what memory it had, and what it wrote.

    Returns:
        ``megabytes`` of graphs and weights, the processor's ``export seconds`` and ``export
        gigabytes``; or ``detail``, its last words, where it failed.
    """
    shutil.rmtree(out, ignore_errors=True)  # of a run that was ended
    with tempfile.TemporaryFile("w+") as said:
        try:
            child = os.posix_spawnp(
                words[0], words, module_environment() | {"OMP_NUM_THREADS": "1"},
                file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), one) for one in (1, 2)],
            )  # fmt: skip
        except OSError as error:
            return {"detail": f"{words[0]}: {error.strerror}"}
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        lines = said.read().strip().splitlines() or ["it wrote nothing"]
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
    config: Any = OnnxConfig(dynamic=True, ort_fusions=fusions or None)  # type: ignore[arg-type]
    exporter: Any = OnnxExporter()  # type: ignore[no-untyped-call]
    exporter.export_for_generation(model, sample_inputs(model, {}), config).save_pretrained(out)


if __name__ == "__main__":
    _transformers(*sys.argv[1:])
