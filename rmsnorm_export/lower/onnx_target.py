"""Target ``onnx``: one ai.onnx RMSNormalization (opset 23) per norm.

``Y = Cast_T(X / sqrt(mean(X ** 2) + epsilon)) * scale``, the row normalised in ``stash_type``; by
this definition LLaMA's order is the operator's own. ONNX Runtime applies the scale in f32 before
the one rounding, whatever ``stash_type`` says, so a plain half node is of class ``reordered``: the
declared class holds in every runtime. With T and V different the operator's function body is
ill-typed, so the scale always has the type of X. The opset of the model changes nothing here:
``min_opset`` of the outcome tells the caller to raise it.

Source: ONNX operator specification, RMSNormalization-23.
"""

from __future__ import annotations

from rmsnorm_export.lower.forms import OneOperator
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import RMS_NORMALIZATION

lower = OneOperator(
    operator=RMS_NORMALIZATION,
    stash_type=None,
    scales_first=False,
    min_opset=TARGETS["onnx"].min_opset,
    reordered_note="exact by the operator's definition; ONNX Runtime scales before it rounds",
).lower
