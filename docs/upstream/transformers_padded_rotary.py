"""transformers: ort_fusions="cpu" rotates a padded batch as its first row

The fusion gives GroupQueryAttention one position for each token (`_shared_rotation` with
prefill=True). For a first prompt the operator takes the first element alone, as ONNX Runtime
documents: every row is rotated by position_ids[0, 0] + s. Rows that are padded differently get
wrong keys, where a head is a multiple of 16. Expected: keys as without the fusion (off by 1e-7),
or no rotation inside. Seen: 0.33.
"""

import logging
import tempfile
import warnings

import torch
import transformers
from transformers.exporters.base import ExportedModel
from transformers.exporters.configs import OnnxConfig
from transformers.exporters.exporter_onnx import OnnxExporter

SEEN = "transformers 5.23.0"

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
model = transformers.LlamaForCausalLM(config).eval()
feeds = {"input_ids": torch.randint(1, 64, (2, 5)), "attention_mask": torch.ones(2, 5).long()}
feeds["attention_mask"][0, 0] = 0
settings = OnnxConfig(dynamic=True, ort_fusions="cpu")
exported = OnnxExporter().export_for_generation(model, feeds, config=settings)
feeds["position_ids"] = (feeds["attention_mask"].cumsum(1) - 1).clamp(min=0)
with torch.no_grad():
    expected = model(**feeds, use_cache=True)["past_key_values"]
with tempfile.TemporaryDirectory() as folder:
    exported.save_pretrained(folder)
    computed = ExportedModel.from_pretrained(folder).runners["prefill"](**feeds)["past_key_values"]
pairs = list(zip(computed.layers, expected.layers, strict=True))
off = max((a.keys[1] - b.keys[1]).abs().max().item() for a, b in pairs)
print(f"keys of the row without padding are off by {off:.2g}")
raise SystemExit(off > 1e-3)
