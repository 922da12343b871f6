"""Decoders of ``flax``, in both of its interfaces, through jax2onnx."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import numpy as np

from tests.tools.corpus.packages.table import FULL, HALF, Made, Model

_LAYERS, _WIDTH, _HEADS = 2, 64, 4
_MODELS = {"nnx": 2 * _LAYERS + 1, "nnx-qk": 4 * _LAYERS + 1, "linen": 2 * _LAYERS + 1}


def models() -> tuple[Model, ...]:
    return tuple(
        Model(f"{name}{suffix}", functools.partial(_make, name, dtype), ((dtype, "jax2onnx"),),
              {"jax2onnx": _write}, {"rms": norms}, light=True, dynamic=axes)
        for name, norms in _MODELS.items()
        for suffix, dtype, axes in (("", FULL, (0, 1)), ("-static", FULL, ()), ("", HALF, (0, 1)))
    )  # fmt: skip


def _make(name: str, dtype: str) -> Made:
    tokens = np.random.default_rng(0).integers(3, 64, (2, 7)).astype(np.int32)
    make = _linen if name == "linen" else functools.partial(_nnx, heads_too=name == "nnx-qk")
    return make(dtype), {"tokens": tokens}


def _nnx(dtype: str, *, heads_too: bool) -> Any:
    import jax.numpy as jnp
    from flax import nnx

    rngs, kind = nnx.Rngs(0), jnp.dtype(dtype)
    same: dict[str, Any] = {"dtype": kind, "param_dtype": kind, "rngs": rngs}

    def norm(width: int) -> Any:
        return nnx.RMSNorm(width, scale_init=nnx.initializers.uniform(2.0), **same)

    class Block(nnx.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.before, self.after = norm(_WIDTH), norm(_WIDTH)
            self.of_heads = nnx.List([norm(_WIDTH // _HEADS) for _ in range(2 * heads_too)])
            self.qkv = nnx.LinearGeneral(_WIDTH, (3, _HEADS, _WIDTH // _HEADS), **same)
            self.out = nnx.LinearGeneral((_HEADS, _WIDTH // _HEADS), _WIDTH, axis=(-2, -1), **same)
            self.up, self.down = nnx.Linear(_WIDTH, 96, **same), nnx.Linear(96, _WIDTH, **same)

        def __call__(self, x: Any) -> Any:
            qkv = self.qkv(self.before(x))
            q, k, v = (qkv[..., i, :, :] for i in range(3))
            if heads_too:
                q, k = self.of_heads[0](q), self.of_heads[1](k)
            x = x + self.out(nnx.dot_product_attention(q, k, v))
            return x + self.down(nnx.silu(self.up(self.after(x))))

    class Decoder(nnx.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.embedding = nnx.Embed(101, _WIDTH, **same)
            self.blocks = nnx.List([Block() for _ in range(_LAYERS)])
            self.norm, self.head = norm(_WIDTH), nnx.Linear(_WIDTH, 101, **same)

        def __call__(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Decoder()


def _linen(dtype: str) -> Any:
    import jax
    import jax.numpy as jnp
    from flax import linen

    same: dict[str, Any] = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(dtype)}
    norm = functools.partial(linen.RMSNorm, scale_init=jax.nn.initializers.uniform(2.0), **same)

    class Decoder(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, tokens: Any) -> Any:
            x = linen.Embed(101, _WIDTH, **same)(tokens)
            for _ in range(_LAYERS):
                x = x + linen.MultiHeadDotProductAttention(_HEADS, **same)(norm()(x))
                h = linen.silu(linen.Dense(96, **same)(norm()(x)))
                x = x + linen.Dense(_WIDTH, **same)(h)
            return linen.Dense(101, **same)(norm()(x))

    decoder = Decoder()
    weights = decoder.init(jax.random.key(0), jnp.zeros((2, 7), jnp.int32))
    return functools.partial(decoder.apply, weights)


def _write(function: Any, given: dict[str, Any], path: pathlib.Path, axes: tuple[int, ...]) -> None:
    import jax
    import jax2onnx

    names = {0: "batch", 1: "sequence"}
    inputs = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(
                ", ".join(names[i] if i in axes else str(d) for i, d in enumerate(array.shape))
            ),
            array.dtype,
        )
        for array in given.values()
    ]
    jax2onnx.to_onnx(
        function, inputs, input_names=list(given), return_mode="file", output_path=str(path)
    )
