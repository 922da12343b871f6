"""The corpus itself: what the scan finds, and that the verdicts come from numbers."""

from __future__ import annotations

import pathlib
import re
from unittest import mock

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.tools.corpus import build, cache, classify, norm_classes
from tests.tools.corpus.scan import scan


@pytest.fixture(scope="module")
def found() -> list[norm_classes.NormClass]:
    return norm_classes.norm_classes()


def test_every_class_named_rmsnorm_is_a_candidate() -> None:
    import transformers

    root = pathlib.Path(transformers.__file__).parent
    named = set()
    for path in root.glob("models/*/modeling_*.py"):
        names = re.findall(
            r"^\s*class (\w*(?:RMS|Rms)[Nn]orm\w*)\(", path.read_text(), re.MULTILINE
        )
        named |= {(path.stem, name) for name in names}
    candidates = {(c.module.rsplit(".", 1)[1], c.name) for c in scan()}
    # the modulation of a norm, which holds two linear layers and no norm
    assert named - candidates == {("modeling_voxtral_realtime", "VoxtralRealtimeTextAdaRmsNorm")}
    assert len(named) > 200


def test_body_ignores_names_and_docstrings_but_not_the_computation(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "models" / "a"
    folder.mkdir(parents=True)
    (folder / "modeling_a.py").write_text(
        "class ANorm(nn.Module):\n"
        "    def forward(self, x):\n"
        '        "text"\n'
        "        m = x.pow(2).mean(-1)\n"
        "        return x * torch.rsqrt(m)\n"
        "if 1:\n"
        "    class BNorm(nn.Module):\n"
        "        def forward(self, hidden: T) -> T:\n"
        "            v = hidden.pow(2).mean(-1)\n"
        "            return hidden * torch.rsqrt(v)\n"
        "class CNorm(nn.Module):\n"
        "    def forward(self, x):\n"
        "        m = x.pow(2).mean(-2)\n"
        "        return x * torch.rsqrt(m)\n"
    )
    a, b, c = scan(tmp_path)
    assert (a.name, b.name, c.name) == ("ANorm", "BNorm", "CNorm")
    assert a.body == b.body != c.body


def test_every_body_is_decided(found: list[norm_classes.NormClass]) -> None:
    assert [n.key for n in found if not n.shape] == []
    assert len({n.key for n in found}) == len(found)


def test_known_norms(found: list[norm_classes.NormClass]) -> None:
    by_key = {n.key: n for n in found}
    want = {
        "LlamaRMSNorm": classify.Variant(),
        "GemmaRMSNorm": classify.Variant(gain="1+w"),
        "Olmo2RMSNorm": classify.Variant(),
        "DeepseekV4UnweightedRMSNorm": classify.Variant(gain="none"),
        "MambaRMSNormGated": classify.Variant(gate="silu before", group_size=build.GROUP),
        "Qwen3NextRMSNormGated": classify.Variant(gate="silu after"),
        "RMSNorm-two-axes": classify.Variant(axes=2),
    }
    assert {key: by_key[key].variant for key in want} == want
    others = ["CohereLayerNorm", "NoNorm", "HYV4UnweightedRMSNorm", "PocketTTSTimestepNorm"]
    assert not any(by_key[key].is_rmsnorm for key in others)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (lambda x, w: x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * w, True),
        (lambda x, w: x / (x.square().mean(-1, keepdim=True).sqrt() + 0.1) * w, True),
        (lambda x, w: x / (x.square().sum(-1, keepdim=True) + 0.1).sqrt() * w, False),
        (lambda x, w: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True)).sqrt() * w, False),
        (lambda x, w: x / (x.abs().mean(-1, keepdim=True) + 0.1) * w, False),
    ],
)
def test_fit_takes_root_mean_squares_only(change, fits: bool) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(build.WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(x, self.weight)

    module = Norm()
    build.randomise(module, seed=0)
    variants = classify.fit(module, build.example_inputs((2, 5, build.WIDTH), 1), 0.1)
    assert len(variants) == int(fits)


def test_cache_entry_appears_whole_or_not_at_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path))

    def broken(folder: pathlib.Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        cache.entry("kind", "name", "key", broken)
    assert list((tmp_path / "kind").iterdir()) == []
    calls = []

    def whole(folder: pathlib.Path) -> None:
        calls.append(folder)
        # another process finishes the same entry first, on a file system without locks
        if len(calls) == 1:
            with mock.patch("filelock.FileLock.acquire", side_effect=OSError):
                cache.entry("kind", "name", "key", whole)
        (folder / "text").write_text(str(len(calls)))

    entry = cache.entry("kind", "name", "key", whole)
    assert [p.name for p in (tmp_path / "kind").iterdir()] == [entry.name]
    assert cache.entry("kind", "name", "key", broken) == entry
    assert cache.entry("kind", "name", "other", lambda _: None) != entry
