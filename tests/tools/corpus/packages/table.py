"""The packages whose models the corpus exports, and how to get them; nothing of them is imported.

A package has one module beside this file, which makes its models. Each is tiny (two layers, a few
heads) and random, and gets one file per exporter and element type.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

Made = tuple[Any, dict[str, Any]]
"""A model and its example inputs by the name of the parameter."""

Write = Callable[[Any, dict[str, Any], pathlib.Path, tuple[int, ...]], None]
"""Writes a model with these inputs to a path, the given axes of every input symbolic."""

FULL, HALF = "float32", "float16"
TORCH = ((FULL, "torchscript17"), (HALF, "torchscript17"), (FULL, "dynamo18"),
         (HALF, "dynamo23-plain"))  # fmt: skip
"""Element types and exporters of PyTorch (``exporters.EXPORTERS``)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """One model of a package.

    Attributes:
        name: unique in the package.
        make: gives the model in float32 and its inputs.
        exports: element types and exporters, the one for the ordinary test run first.
        own: exporters of its own framework, by name.
        norms: how many norms it runs by kind (``count.Kind``) where its framework has no hooks for
            ``count``, which counts them otherwise.
        light: exported in the ordinary test run, too.
        dynamic: axes that are symbolic in every input, where the exporter can.
    """

    name: str
    make: Callable[[], Made]
    exports: tuple[tuple[str, str], ...] = TORCH
    own: Mapping[str, Write] = dataclasses.field(default_factory=dict)
    norms: Mapping[str, int] | None = None
    light: bool = False
    dynamic: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """Where the models of a package come from.

    Attributes:
        name: of the distribution, as pip knows it.
        module: beside this file, with ``models() -> tuple[Model, ...]``.
        needs: top-level modules that must be there.
        install: the command that brings it.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    install: str

    def missing(self) -> str:
        """Why the models cannot be made here and what enables it; "" when they can."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} not installed: {self.install}" if absent else ""

    def models(self) -> tuple[Model, ...]:
        """Its models; imports the package."""
        module = importlib.import_module(f"tests.tools.corpus.packages.{self.module}")
        found: tuple[Model, ...] = module.models()
        return found


PACKAGES: dict[str, Package] = {
    package.name: package
    for package in (
        Package("transformers", "hugging", ("transformers",), "pip install transformers"),
        Package("x-transformers", "lucid", ("x_transformers",), "pip install x-transformers"),
        Package("mambapy", "mamba", ("mambapy",), "pip install mambapy"),
        Package("diffusers", "diffusion", ("diffusers",), "pip install diffusers"),
        Package("timm", "images", ("timm", "torchvision"), "pip install timm"),
        Package("vit-pytorch", "vits", ("vit_pytorch", "torchvision"), "pip install vit-pytorch"),
        Package("litgpt", "lit", ("litgpt", "lightning"), "pip install litgpt"),
        Package("keras", "keras_models", ("keras",), "pip install keras"),
        Package("flax", "flax_models", ("flax", "jax2onnx"), "pip install flax jax2onnx"),
        Package(
            "denoising-diffusion-pytorch",
            "denoising",
            ("denoising_diffusion_pytorch", "torchvision"),
            "pip install denoising-diffusion-pytorch",
        ),
        Package("titans-pytorch", "titans", ("titans_pytorch",), "pip install titans-pytorch"),
    )
}
