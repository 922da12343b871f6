"""An engine's record, for tests that need no engine."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.runtime.sizes import Declared, Profile
from rmsnorm_export.tensorrt.engine.result import EngineNorm, EngineRecord

IDS = Declared("ids", "int64", ("batch", "length"))
LOGITS = Declared("logits", "float32", ("batch", "length", 40))


def profile(*sizes: tuple[int, ...], name: str = "ids") -> Profile:
    """A range of one input: smallest, usual and largest shape."""
    return tuple({name: size} for size in sizes)


def engine_record(**changes: Any) -> EngineRecord:
    """A record of TensorRT for a model of token ids with one norm."""
    facts: dict[str, Any] = {
        "engine": "net.engine",
        "bytes": 1 << 21,
        "sha256": "",
        "model": "net.onnx",
        "model_sha256": "",
        "backend": "tensorrt",
        "version": "11.4.0",
        "versions": {},
        "gpus": ("H200, 9.0, 580",),
        "built": "2026-01-01T00:00:00Z",
        "seconds": 1.5,
        "inputs": (IDS,),
        "outputs": (LOGITS,),
        "profiles": (profile((1, 1), (4, 32), (8, 128)),),
        "flags": {},
        "plugin": "",
        "plugin_reason": "no norm needs it",
        "norms": (EngineNorm("norm", "RMSNorm", "node", "plugin", 1),),
        "layers": (),
        "layers_from": "inspector",
    }
    return EngineRecord(**facts | changes)
