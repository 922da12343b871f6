"""The exports that the repository keeps are those that today's exporters make."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import torch

from scripts.corpus import architectures, cache, exporters, kept
from scripts.corpus.norm_classes import norm_classes

PLAIN = ("LlamaRMSNorm-float16-dynamo18", "RMSNorm-float32-torchscript17")


def entries() -> Iterator[tuple[str, str, Callable[[], pathlib.Path]]]:
    """Every entry that is kept: kind, name without the digest, and its folder when it is made."""
    for norm in norm_classes():
        for dtype, exporter in exporters.combinations(norm):
            yield (
                "norms",
                f"{norm.key}-{dtype}-{exporter}",
                lambda norm=norm, dtype=dtype, exporter=exporter: (
                    exporters.export_norm(norm, dtype, exporter).arrays.parent
                ),
            )
    for arch in architectures.architectures():
        for dtype in architectures.TYPES:
            yield (
                "architectures",
                f"{arch.name}-{dtype}",
                lambda arch=arch, dtype=dtype: (
                    architectures.export_architecture(arch, dtype).arrays.parent
                ),
            )


def pinned() -> bool:
    """Whether the versions are those of constraints.txt and of the interpreter that kept them."""
    path = pathlib.Path(__file__).parents[1] / "constraints.txt"
    lines = path.read_text(encoding="utf-8").replace("==", "-").split("\n")
    wanted = {line.split(";")[0].strip() for line in lines}
    found = {version.split("+")[0] for version in cache.versions().split(" ")}
    return sys.version_info[:2] == (3, 11) and found <= wanted


def test_every_entry_is_kept_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the exporters or their versions: ``python -m scripts.corpus --keep``."""
    if not pinned():
        pytest.skip("the exports are kept for the versions of constraints.txt on Python 3.11")
    asked = set()

    def noted(kind: str, name: str, _folder: pathlib.Path) -> bool:
        asked.add((kind, name))
        raise LookupError

    everything = list(entries())
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "restore", noted)
    for _, _, folder in everything:
        with pytest.raises(LookupError):
            folder()
    assert asked == {(kind, name) for kind in kept.KINDS for name in kept.kept(kind)}


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        pytest.param(kind, made, id=name, marks=() if name in PLAIN else pytest.mark.thorough)
        for kind, name, made in entries()
    ],
)
def test_a_kept_export_is_what_the_exporter_makes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str, made
) -> None:
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path / "made"))
    with monkeypatch.context() as context:
        context.setattr(kept, "restore", lambda *_: False)
        real = made()
    restored = tmp_path / "restored"
    restored.mkdir()
    if not kept.restore(kind, cache.public[real], restored):
        assert not pinned()
        pytest.skip("other versions")
    assert sorted(p.name for p in restored.iterdir()) == sorted(p.name for p in real.iterdir())
    about = [json.loads((folder / "about.json").read_text()) for folder in (real, restored)]
    assert about[0] == about[1]
    if (real / "model.onnx").exists():
        found = onnx.load(restored / "model.onnx")
        assert kept.digest(found) == kept.digest(kept.without_paths(real / "model.onnx"))
    if (real / "arrays.npz").exists():
        before, after = (cache.load_arrays(folder / "arrays.npz") for folder in (real, restored))
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[key], after[key], equal_nan=True) for key in before)


def test_a_module_with_other_weights_is_exported(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for name in kept.kept("norms") if name.startswith(PLAIN[0]))
    real = kept._made

    def other(kind: str, name: str):
        module, inputs = real(kind, name)
        with torch.no_grad():
            next(module.parameters()).add_(1)
        return module, inputs

    assert kept.restore("norms", name, tmp_path)
    monkeypatch.setattr(kept, "_made", other)
    (tmp_path / "second").mkdir()
    assert not kept.restore("norms", name, tmp_path / "second")
    assert not (tmp_path / "second" / "model.onnx").exists()
    assert not kept.restore("norms", "no-such-entry", tmp_path / "second")
