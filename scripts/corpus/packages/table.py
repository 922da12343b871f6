"""The packages whose models the corpus exports, and how to get them; nothing of them is imported.

A package has one module beside this file, which makes its models. Each is tiny (two layers, a few
heads) and random, and gets one file per exporter and element type.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

Made = tuple[Any, dict[str, Any]]
"""A model and its example inputs by the name of the parameter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """One model of a package.

    Attributes:
        name: unique in the package.
        make: gives the model in float32 and its inputs.
        dtypes: element types that it is exported in.
        exporters: that are asked for it.
        light: exported in the ordinary test run, too.
        dynamic: axes that are symbolic in every input, where the exporter can.
    """

    name: str
    make: Callable[[], Made]
    dtypes: tuple[str, ...] = ("float32", "float16")
    exporters: tuple[str, ...] = ("torchscript17", "dynamo18", "dynamo23-plain")
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
        module = importlib.import_module(f"scripts.corpus.packages.{self.module}")
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
        Package("titans-pytorch", "titans", ("titans_pytorch",), "pip install titans-pytorch"),
    )
}
