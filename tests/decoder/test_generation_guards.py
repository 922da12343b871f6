"""The prompts for which a traced loop over tokens is right, read off the guards of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import numpy as np
import onnx_ir as ir

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.caches import whole_caches
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.guards import lengths_of
from rmsnorm_export.decoder.inputs import sample_inputs
from rmsnorm_export.decoder.short import fill_states
from rmsnorm_export.errors import ExitCode
from rmsnorm_export.runtime.session import load_session
from tests.decoder.conftest import Folder
from toolbox.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]


class Chunks(torch.nn.Module):
    """Sums over chunks of four tokens, in a loop."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        tokens = input_ids.shape[1]
        padded = torch.nn.functional.pad(input_ids, (0, -tokens % 4))
        return sum(padded[:, 4 * i : 4 * i + 4].sum(1) for i in range(-(-tokens // 4)))


class Short(torch.nn.Module):
    """Takes one way for few tokens, and another one for more."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids + 1 if input_ids.shape[1] <= 40 else input_ids - 1


class Sum(torch.nn.Module):
    """One that does not look at the number."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids.cumsum(1)


@pytest.mark.parametrize(
    ("module", "tokens", "expected"),
    [(Chunks(), 7, (5, 8)), (Chunks(), 13, (13, 16)), (Short(), 6, (1, 40)), (Sum(), 6, None)],
)
def test_lengths_are_those_of_the_traced_way(
    module: torch.nn.Module, tokens: int, expected: tuple[int, int] | None
) -> None:
    feeds = {"input_ids": torch.ones((2, tokens), dtype=torch.int64)}
    shapes = {"input_ids": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    program = torch.export.export(module, (), feeds, dynamic_shapes=shapes)
    assert lengths_of(program, feeds) == expected
    traced = program.module(check_guards=False)

    def is_right(number: int) -> bool:
        other = {"input_ids": torch.arange(2 * number).reshape(2, number)}
        return torch.equal(traced(**other), module(**other))

    least, most = expected or (2, 50)
    assert is_right(least)
    assert is_right(most)
    assert not isinstance(module, Chunks) or not is_right(most + 1)


def test_the_state_of_a_short_prompt_begins_with_zeros() -> None:
    """The last three tokens, as a graph of more than three takes them."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[batch, 2, sequence] x) => (float[batch, 2, 3] state)
        <int64[1] start = {-3}, int64[1] end = {9223372036854775807}, int64[1] axis = {2}> {
          y = Neg (x) state = Slice (y, start, end, axis)
        }""")
    model.graph.outputs[0].producer().inputs[0].shape = model.graph.inputs[0].shape
    fill_states(model)
    session = load_session(ir.to_proto(model).SerializeToString())
    for tokens in (1, 2, 3, 7):
        x = np.arange(1, 1 + 4 * tokens, dtype=np.float32).reshape(2, 2, tokens)
        expected = np.concatenate([np.zeros((2, 2, 3), np.float32), -x], axis=2)[:, :, -3:]
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lfm2", "mamba2"])
def test_a_prompt_may_be_shorter_than_the_window_of_a_convolution(
    kind: str, tmp_path: Path
) -> None:
    """Of the longer one it was traced with, the state is the end."""
    model = decoder_of(kind)
    rx.export_generation(model, tmp_path / "made")
    for tokens in (1, 3):
        ids = torch.arange(3, 3 + 2 * tokens).reshape(2, tokens)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        outcome = verify_generation(model, tmp_path / "made", inputs, tokens=3)
        assert outcome.passed
        assert outcome.notes[0] == "6 of 6 greedy tokens are the same"


# Caches that hold every token, those out of a window, too.


@pytest.mark.parametrize("window", [8, 40])
def test_a_static_cache_holds_more_than_the_window(window: int) -> None:
    """As transformers' own caches write, whichever is shorter: prompt, window or cache."""
    model = decoder_of("mistral", sliding_window=window)
    feeds = sample_inputs(model, {})
    how = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    expected = model.generate(**feeds, **how)
    with whole_caches(static=True):
        written = model.generate(
            **feeds, **how, cache_implementation="static", return_dict_in_generate=True
        )
    assert {layer.keys.shape[2] for layer in written.past_key_values.layers} == {20}
    np.testing.assert_array_equal(written.sequences, expected)


@pytest.mark.parametrize("option", ["--verify", "--quantize=int4", "--for=onnxruntime"])
def test_what_bfloat16_cannot_have_is_said_before_the_export(option: str, tmp_path: Path) -> None:
    decoder_of("llama").save_pretrained(tmp_path / "source")
    command = ["export", str(tmp_path / "source"), "--task", "generation", "--dtype", "bf16"]
    command += ["-o", str(tmp_path / "made")]
    assert main([*command, option]) == ExitCode.USAGE
    assert not (tmp_path / "made").exists()


def test_a_static_cache_is_compared_on_rows_without_padding(static: Folder) -> None:
    """``generate`` gives no mask then, and the graph takes one over all slots."""
    model, folder = static
    ids = torch.tensor([[5, 9, 2], [7, 1, 3]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    steps: list[tuple[int, int]] = []
    outcome = verify_generation(
        model, folder, inputs, tokens=6,
        progress=lambda _, done, total: steps.append((done, total)),
    )  # fmt: skip
    assert outcome.passed
    assert outcome.notes[0] == "12 of 12 greedy tokens are the same"
    assert steps == [(done, 6) for done in range(1, 7)]
