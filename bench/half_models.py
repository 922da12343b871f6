"""Models in float32 for ``bench.half``: as they are, and with a residual stream beyond float16.

Random weights in the code of transformers and diffusers, and one trained model, each one graph of
``torch.onnx.export`` without a cache. The stream grows by a power of two in the weights that write
to it, which the norms that read it take out again: what the model computes stays.
"""

from __future__ import annotations

import math
import pkgutil
import re
from pathlib import Path
from typing import Any

import torch
import transformers

from toolbox.corpus.arch_table import COMMON
from toolbox.corpus.exporters import Example, Export, cached
from toolbox.corpus.tables import Table, tables
from toolbox.trained import trained_model

LARGEST = 65504.0
ROWS, TRAINED = 4, "SmolLM2-135M"
_TEXT = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "decoder.md"
_PLAIN = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
"""What can be exported: no loop over the experts in use."""


MODELS = tables(Path(__file__).with_suffix(".toml"))


def export(name: str, scaled: bool) -> Export:
    """Return the ONNX file of a model of ``MODELS``, with ``ROWS`` example rows."""
    depends = f"{COMMON} {MODELS[name]} {Path(__file__).read_text(encoding='utf-8')}"
    attempts = [("dynamo18", (0, 1)), ("dynamo18", (0,))]
    fixed = name in ("whisper", "sd3", "vit", "mamba2")
    key = f"{name}-{'scaled' if scaled else 'plain'}"
    return cached("half", key, depends, lambda: make(name, scaled), attempts[fixed:])


def make(name: str, scaled: bool) -> Example:
    """Return a model, its example inputs, and 0, since its norms are not counted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model, inputs = _trained() if name == TRAINED else _random(name)
    whole = _FirstOutput(model.eval(), tuple(inputs))
    if scaled:
        _scale(whole, MODELS[name], inputs)
    return whole, inputs, 0


class _FirstOutput(torch.nn.Module):
    """A model as a function with one tensor as its result."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, a: torch.Tensor, b: Any = None, c: Any = None, d: Any = None) -> torch.Tensor:
        outputs = self.model(**dict(zip(self.names, (a, b, c, d), strict=False)))
        result: torch.Tensor = outputs[0]
        return result


def _random(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    table = MODELS[name]
    kind = pkgutil.resolve_name(table["kind"]) if "kind" in table else None
    if name == "sd3":
        model = kind(**table["settings"])
    else:
        config = transformers.AutoConfig.for_model(name, **{**COMMON, **table["settings"]})
        language_model = transformers.AutoModelForCausalLM.from_config
        model = kind(config) if kind else language_model(config, **_PLAIN)
    inputs = {key: torch.randn(size) for key, size in table.get("inputs", {}).items()}
    if name == "sd3":
        inputs["timestep"] = torch.tensor([999.0, 700.0, 300.0, 20.0])
    return model, inputs or {"input_ids": torch.randint(3, 512, (ROWS, 16))}


def _trained() -> tuple[Any, dict[str, torch.Tensor]]:
    if (source := trained_model()) is None:
        raise ImportError("the trained model is missing")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, use_cache=False)
    head = model.lm_head.weight.detach().clone()  # apart from the embedding, which is scaled
    model.lm_head.weight = torch.nn.Parameter(head)
    ids = transformers.AutoTokenizer.from_pretrained(source)(_TEXT.read_text(encoding="utf-8"))
    return model, {"input_ids": torch.tensor(ids["input_ids"][: ROWS * 64]).reshape(ROWS, 64)}


def _scale(whole: Any, model: Table, inputs: dict[str, torch.Tensor]) -> None:
    """Scale the stream, so that its largest value is one to two times the largest of float16."""
    factor = 2.0 ** (1 + math.floor(math.log2(LARGEST / _largest(whole, inputs))))
    written = [*whole.model.named_parameters(), *whole.model.named_buffers()]
    with torch.no_grad():
        for name, tensor in written:
            if re.search(model["writes"], name):
                plus = float("norm" in name)  # such a norm multiplies by 1 + weight
                tensor.copy_((tensor + plus) * factor - plus)
    if start := model.get("start"):
        first = whole.model.get_submodule(start)
        first.register_forward_pre_hook(lambda _, args: (args[0] * factor, *args[1:]))


def _largest(whole: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Return the largest magnitude of what the layers give."""
    seen = []

    def see(_module: Any, _args: Any, outputs: Any) -> None:
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        seen.extend(float(one.abs().max()) for one in tensors if torch.is_tensor(one))

    layers = next(one for one in whole.modules() if isinstance(one, torch.nn.ModuleList))
    hooks = [layer.register_forward_hook(see) for layer in layers]
    with torch.no_grad():
        whole(*inputs.values())
    for hook in hooks:
        hook.remove()
    return max(seen)
