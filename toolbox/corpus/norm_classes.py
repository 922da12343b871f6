"""The norm classes of ``transformers`` and ``torch.nn.RMSNorm``, once for each distinct body.

``norms.json`` has what was found with transformers 5.24 and torch 2.13, by reading each class that
calls no child module, and by comparing its numbers with every formula of an RMSNorm in float64 (T:
type of the input, S: float32):

- 282 classes have 46 distinct bodies; 218 classes and 22 bodies are RMSNorms. The others: 21 centre
  the row (LayerNorm, GroupNorm), two are affine (frozen BatchNorm, NoNorm), one divides by the
  deviation without centring (PocketTTS), one clamps an L2 norm (Zaya), one returns 1 / RMS alone
  (HYV4).
- Rounding: ``T(x / rms) * w`` (Llama, T5, CpmAnt, Llama-4, xLSTM, Mamba-2 and the like),
  ``T(x / rms * w)`` (Gemma, Gemma-3n, OLMo-2, Helium, Moshi, torch), ``x * T(1 / rms)``
  (DeepSeek-V4), everything in T (ImageGPT, GradiumPhononTTS).
- Gain ``1 + w``: added in S (Gemma, Qwen4Exp); added in T and then used in S
  (MuseSparkTextCentered). MuseSparkTextInputScaled has it in front: ``T(x * T(1 + w))`` is
  normalised without a weight.
- Gates: ``T(T(x / rms) * w) * silu(z)`` in S (Qwen3Next); the same with sigmoid and nothing rounded
  in between (KimiLinear) and with silu in groups (FalconH1); in front of the norm in S, in groups,
  nothing rounded (Mamba-2).
- Not leaves, so not here, but an RMSNorm is written out in them: Reformer's LSHSelfAttention and
  VibeVoice's final layer (``F.rms_norm``, then AdaLN modulation).
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import msgspec

_FILE = pathlib.Path(__file__).with_name("norms.json")


class NormClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One norm: a distinct forward body, or another way to construct or call it.

    Attributes:
        path: dotted name of the best known class with this body.
        is_rmsnorm: whether it is one.
        inputs: names of the forward parameters that are given.
        label: "" for the body itself, else the name of this way to construct or call it.
        scaled_before: whether the row is scaled by 1 + w before it is normalised.
        arguments: constructor arguments besides the sizes and epsilon.
        shape: of the example inputs.
        members: dotted names of all classes with this body; none of another way to construct it.
    """

    path: str
    is_rmsnorm: bool
    inputs: tuple[str, ...]
    label: str = ""
    scaled_before: bool = False
    arguments: dict[str, Any] = {}
    shape: tuple[int, ...] = (2, 5, 48)
    members: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return its unique readable name."""
        name = self.path.rpartition(".")[2]
        return f"{name}-{self.label}" if self.label else name


@functools.cache
def norm_classes() -> tuple[NormClass, ...]:
    """Return every distinct norm, most common body first."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[NormClass, ...])
