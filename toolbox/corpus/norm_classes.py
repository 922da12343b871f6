"""Every norm class of the installed ``transformers``, and what it computes, decided by numbers.

What was found with transformers 5.23 and torch 2.13 (T: type of the input, S: float32):

- 282 classes that call no child module, 46 distinct bodies with ``torch.nn.RMSNorm``; 218 classes
  and 22 bodies are RMSNorms. The others: 21 centre the row (LayerNorm, GroupNorm), two are affine
  (frozen BatchNorm, NoNorm), one divides by the deviation without centring (PocketTTS), one clamps
  an L2 norm (Zaya), one returns 1 / RMS alone (HYV4).
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

import collections
import contextlib
import dataclasses
import functools
import inspect
import pathlib
import warnings
from typing import Any

import msgspec
import torch

from toolbox.corpus import build, cache, classify
from toolbox.corpus.scan import Candidate, scan

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

EPSILON = 1e-5
_FIT_EPSILON = 0.1  # near the mean squares of the example rows: shows whether it is in the root

# The class after which a body is named: the best known of those that share it.
_PREFERRED = {
    "LlamaRMSNorm", "GemmaRMSNorm", "Olmo2RMSNorm", "T5LayerNorm", "Gemma3nRMSNorm",
    "MambaRMSNormGated", "NanoChatRMSNorm", "Qwen3NextRMSNormGated", "KimiLinearRMSNormGated",
    "MoshiRMSNorm",
}  # fmt: skip

# Constructor arguments that no rule on parameter names can guess.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "ChameleonLayerNorm": {"hidden_size": (build.WIDTH,)},
    "Emu3VQVAEGroupNorm": {"num_groups": 3, "num_channels": build.WIDTH},
}

# Other ways to construct or call a class that give another norm: label -> (arguments, inputs).
_VARIANTS: dict[str, dict[str, tuple[dict[str, Any], int]]] = {
    "Gemma3nRMSNorm": {"weightless": ({"with_scale": False}, 1)},
    "MambaRMSNormGated": {"one-group": ({"group_size": build.WIDTH}, 2), "ungated": ({}, 1)},
    "FalconH1RMSNormGated": {
        "gate-first": ({"norm_before_gate": False}, 2),
        "one-group": ({"n_groups": 1}, 2), "ungated": ({}, 1),
    },
    "Qwen4ExpTextRMSNorm": {"one-group": ({"group_size": None}, 1)},
    "xLSTMRMSNorm": {
        "weightless": ({"use_weight": False}, 1), "bias": ({"use_bias": True}, 1),
        "input-type": ({"force_float32_reductions": False}, 1),
    },
    "RMSNorm": {
        "weightless": ({"elementwise_affine": False}, 1),
        "two-axes": ({"normalized_shape": (6, build.WIDTH)}, 1),
        "default-epsilon": ({"eps": None}, 1),
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class NormClass:
    """One norm: a distinct forward body, or another way to construct or call it.

    Attributes:
        name: class name of the representative.
        module: where it is defined.
        label: "" for the body itself, else the name of this way to construct or call it.
        source: the normalised text of ``forward`` and what it calls.
        members: dotted names of all classes with this body.
        variant: what kind of RMSNorm, decided by numbers; None when it is none.
        arguments: constructor arguments besides the sizes and epsilon, as pairs.
        shape: of the example inputs.
        inputs: names of the forward parameters that are given.
    """

    name: str
    module: str
    label: str
    source: str
    members: tuple[str, ...]
    variant: classify.Variant | None
    arguments: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...]
    inputs: tuple[str, ...]

    @property
    def key(self) -> str:
        """Unique readable name."""
        return f"{self.name}-{self.label}" if self.label else self.name

    @property
    def is_rmsnorm(self) -> bool:
        return self.variant is not None

    def make(self, dtype: str = "float32") -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """The module with random weights and its example inputs.

        Args:
            dtype: ``float32``, ``float16`` or ``bfloat16``, for weights and inputs.
        """
        module = build.build(
            self.module,
            self.name,
            dtype=DTYPES[dtype],
            eps=EPSILON,
            overrides=dict(self.arguments),
        )
        return module, build.example_inputs(self.shape, len(self.inputs), dtype=DTYPES[dtype])


@functools.cache
def norm_classes(*, rmsnorm_only: bool = False) -> list[NormClass]:
    """Return every distinct norm, most common body first; ``torch.nn.RMSNorm`` is among them.

    The verdicts are kept in the cache, so that only the first call imports the model files.
    """

    def fill(folder: pathlib.Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (folder / "classes.json").write_bytes(msgspec.json.encode(_classify_all()))

    key = cache.source_hash("scan", "build", "classify", "norm_classes")
    folder = cache.entry("classes", "norms", key, fill)
    norms = msgspec.json.decode((folder / "classes.json").read_bytes(), type=list[NormClass])
    return [norm for norm in norms if norm.is_rmsnorm or not rmsnorm_only]


def _classify_all() -> list[NormClass]:
    """Decide on leaf norm classes by their forward body, most common body first.

    A leaf calls no child module; a class that does (an encoder layer, a block that holds a norm) is
    no norm itself: its child is found on its own.
    """
    bodies: dict[str, list[Candidate]] = collections.defaultdict(list)
    for candidate in scan():
        if not candidate.submodules:
            bodies[candidate.body].append(candidate)
    source = "def forward(self, x):\n    return F.rms_norm(x, ..., self.weight, self.eps)"
    torch_norm = Candidate("torch.nn.modules.normalization", "RMSNorm", source, ())
    groups = sorted(bodies.values(), key=lambda group: (-len(group), group[0].name))
    norms: list[NormClass] = []
    for group in [*groups, [torch_norm]]:
        chosen = next((c for c in group if c.name in _PREFERRED), group[0])
        members = tuple(f"{c.module}.{c.name}" for c in group)
        for label, (arguments, count) in {"": ({}, None), **_VARIANTS.get(chosen.name, {})}.items():
            arguments = {**_ARGUMENTS.get(chosen.name, {}), **arguments}
            norms.append(_classify_one(chosen, label, arguments, count, members))
    return norms


def _classify_one(
    chosen: Candidate,
    label: str,
    arguments: dict[str, Any],
    count: int | None,
    members: tuple[str, ...],
) -> NormClass:
    variant, shape, names = None, (), ()
    with contextlib.suppress(Exception):  # one that cannot be constructed has no shape
        module = build.build(chosen.module, chosen.name, eps=_FIT_EPSILON, overrides=arguments)
        names = _input_names(module, count)
        shape = _accepted_shape(module, len(names))
    if shape:
        # None: the step of float32 for half inputs too, the type it computes in.
        eps = torch.finfo(torch.float32).eps if "eps" in arguments else _FIT_EPSILON
        variants = classify.fit(module, build.example_inputs(shape, len(names)), eps)
        variant = next((v for v in variants if v.epsilon == "inside"), (*variants, None)[0])
    return NormClass(
        chosen.name, chosen.module, label, chosen.source, members, variant,
        tuple(arguments.items()), shape, names,
    )  # fmt: skip


def _input_names(module: torch.nn.Module, count: int | None) -> tuple[str, ...]:
    parameters = inspect.signature(module.forward).parameters.values()
    names = (p.name for p in parameters if p.default is p.empty or p.name == "gate")
    return tuple(names)[:count]


def _accepted_shape(module: torch.nn.Module, count: int) -> tuple[int, ...]:
    """Return the first shape that it takes: rows last, then heads, then channels first."""
    w, g = build.WIDTH, build.GROUP
    shapes = [(2, 5, w), (2, 5, 6, w), (2, 5, w // g, g), (2, 5, 4, w), (2, w, 5, 5), (2, w, 5)]
    last = getattr(module, "normalized_shape", None)
    if isinstance(last, tuple) and len(last) > 1:
        shapes = [(2, 5, *last)]
    for shape in shapes:
        # Any refusal means: try the next shape.
        with contextlib.suppress(Exception), torch.no_grad():
            module(*build.example_inputs(shape, count))
            return shape
    return ()
