"""Pipeline files for the tests, and what must hold of a folder after whatever happened to a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

import rmsnorm_export as rx
from rmsnorm_export.deploy.result import RECORD, read_record
from tests.cli.conftest import model

FACTORY = """
import torch

def make(n=40, depth=2):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(n, n), torch.nn.RMSNorm(n)) for _ in range(depth)]
    return torch.nn.Sequential(*layers)
"""

TABLES = {
    "model": '[model]\npath = "three.onnx"',
    "export": '[export]\nsource = "factory:make"\nshapes = "input=float32[batch=1..8,40]"',
    "optimize": '[optimize]\nrequire = "all"',
    "proved": '[optimize]\nrequire = "all"\nprove = true',
    "build": '[build]\nbackend = "tensorrt-rtx"\nshapes = "x=1x40,4x40,8x40"',
    "verify": "[verify]",
    "bench": '[bench]\ntarget = ["portable"]\nseconds = 0.02\nshapes = "x=4x40"\nthreads = 1',
    "package": "[package]\nmax_batch = 8",
}


def write(folder: Path, *tables: str, name: str = "net") -> Path:
    """A pipeline file with these tables, text or of ``TABLES``, beside a model and a factory."""
    if not (folder / "three.onnx").exists():
        onnx.save(model(3), folder / "three.onnx")
        (folder / "factory.py").write_text(FACTORY)
    path = folder / "pipeline.toml"
    texts = [TABLES.get(table, table) for table in tables]
    path.write_text("\n".join([f'[pipeline]\nname = "{name}"\nfolder = "out"', *texts, ""]))
    return path


def states(deployment: rx.Deployment) -> dict[str, str]:
    """Step -> state."""
    return {step.name: step.state for step in deployment.steps}


def ran(deployment: rx.Deployment) -> list[str]:
    """The steps that ran."""
    return [step.name for step in deployment.steps if step.state == "done"]


def assert_consistent(folder: Path) -> None:
    """Every step is there whole or not at all."""
    for step in folder.iterdir():
        if not step.is_dir() or step.name.startswith(".") or step.name == "repository":
            continue
        record = read_record(step)
        assert record is not None, f"{step.name} has no record"
        assert record.name == step.name
        own = {name for name in record.outputs if not name.startswith("..")}
        if step.name != "package":  # the repository may be a step further than the record
            assert own == {*record.outputs}
            assert all((step / name).is_file() for name in own)
        own |= {RECORD, *(Path(name).parent.as_posix() for name in own)}
        assert {p.relative_to(step).as_posix() for p in step.rglob("*")} <= own


def document(folder: Path) -> dict[str, Any]:
    """``deploy.json``."""
    loaded: dict[str, Any] = json.loads((folder / "deploy.json").read_text())
    return loaded
