"""Models of ``keras`` on PyTorch, by keras' own exporter; PyTorch's do not take its models."""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any

import torch

from tests.tools.corpus.packages.table import FULL, HALF, Made, Model

_LAYERS = 2
_MODELS = {
    "decoder": {"rms": 2 * _LAYERS + 1},
    "decoder-qk": {"rms": 4 * _LAYERS + 1},
    "images": {"rms": 2},
}


def models() -> tuple[Model, ...]:
    return tuple(
        Model(name, functools.partial(_make, name, dtype), ((dtype, "keras"),), {"keras": _write},
              norms, light=name == "decoder", dynamic=())
        for name, norms in _MODELS.items()
        for dtype in (FULL, HALF)
    )  # fmt: skip


def _make(name: str, dtype: str) -> Made:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        if name.startswith("decoder"):
            tokens = torch.randint(3, 64, (2, 7), dtype=torch.int32)
            return _decoder(heads_too=name.endswith("qk")), {"tokens": tokens}
        pictures = torch.randn(2, 16, 16, 3, dtype=getattr(torch, dtype))
        return _images(), {"pictures": pictures}
    finally:
        keras.config.set_dtype_policy(before)


def _decoder(*, heads_too: bool) -> Any:
    import keras
    from keras import layers, ops

    class Attention(layers.Layer):  # type: ignore[misc]
        """Queries and keys of every head are normalised."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv = layers.EinsumDense("bsn,nthd->btshd", (3, None, 4, 16))
            self.norms = [layers.RMSNormalization() for _ in "qk"]
            self.out = layers.EinsumDense("bshd,hdn->bsn", (None, 64))

        def call(self, x: Any) -> Any:
            q, k, v = ops.unstack(self.qkv(x), 3, axis=1)
            q, k = self.norms[0](q), self.norms[1](k)
            return self.out(ops.dot_product_attention(q, k, v))

    tokens = keras.Input((7,), dtype="int32", name="tokens")
    x = layers.Embedding(101, 64)(tokens)
    for _ in range(_LAYERS):
        h = layers.RMSNormalization()(x)
        x = x + (Attention()(h) if heads_too else layers.MultiHeadAttention(4, 16)(h, h))
        h = layers.RMSNormalization(epsilon=1e-5)(x)
        x = x + layers.Dense(64)(layers.Dense(96, activation="silu")(h))
    return keras.Model(tokens, layers.Dense(101)(layers.RMSNormalization()(x)))


def _images() -> Any:
    import keras
    from keras import layers

    x = pictures = keras.Input((16, 16, 3), name="pictures")
    for width in (16, 24):
        x = layers.Conv2D(width, 3, 2, "same", activation="silu")(x)
        x = layers.RMSNormalization()(x)
    return keras.Model(pictures, layers.GlobalAveragePooling2D()(x))


def _write(model: Any, given: dict[str, Any], path: pathlib.Path, _axes: tuple[int, ...]) -> None:
    """Its exporter takes no symbolic axes where keras runs on PyTorch."""
    import keras

    signature = [
        keras.InputSpec(shape=tuple(v.shape), dtype=str(v.dtype).removeprefix("torch."), name=name)
        for name, v in given.items()
    ]
    model.export(str(path), format="onnx", verbose=False, input_signature=signature)
