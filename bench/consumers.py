"""Texts that optimum-onnx and onnxruntime-genai write from an export, beside those of PyTorch.

Run as a program by the Python that has one of them (``consumers.py optimum|genai``), where it needs
nothing of this project: it prints versions, and of a folder and texts to go on with, which it reads
as JSON, the tokens.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

TOKENS, END = 16, 2
PACKAGES = {
    "optimum": ("optimum-onnx", "transformers", "torch", "onnxruntime"),
    "genai": ("onnxruntime-genai", "onnxruntime"),
}


def cases_of(consumer: str) -> dict[str, dict[str, Any]]:
    """Return what a consumer goes on with: ``ids``, ``mask``, ``how``, perhaps a ``chunk``."""
    import numpy as np

    from toolbox.corpus.tables import tables

    drawn, cases = np.random.default_rng(0), {}
    for name, case in tables(Path(__file__).with_suffix(".toml"))[consumer].items():
        mask = np.arange(max(case["rows"])) < np.array(case["rows"])[:, None]
        mask = mask[:, ::-1] if consumer == "optimum" else mask
        ids = drawn.integers(3, 60, mask.shape) * mask
        cases[name] = {"how": {}, "ids": ids.tolist(), "mask": mask.astype(int).tolist(), **case}
    return cases


@dataclasses.dataclass(frozen=True)
class Writer:
    """What loads an export and writes, in a process of the Python that has it.

    Attributes:
        consumer: ``optimum`` or ``genai``.
        python: the command of that Python.
    """

    consumer: str
    python: str

    def _lines(self, *request: object) -> list[str]:
        command = [*shlex.split(self.python), __file__, self.consumer]
        text, pipe = json.dumps(request), subprocess.PIPE
        done = subprocess.run(command, input=text, stdout=pipe, text=True, check=False)
        return done.stdout.splitlines()

    def versions(self) -> str:
        """Return the versions of what it runs."""
        return next(iter(self._lines("", [])), "")

    def compare(self, folder: Path, model: Any) -> dict[str, tuple[int, int]]:
        """Return by case how many tokens of how many are the model's.

        Raises:
            RuntimeError: the consumer fails, with its words.
        """
        cases = cases_of(self.consumer)
        lines = self._lines(str(folder), [*cases.values()])[1:]
        answers = json.loads(lines[0]) if lines else "its process ended"
        if isinstance(answers, str):
            raise RuntimeError(answers)
        same = {}
        for (name, case), rows in zip(cases.items(), answers, strict=True):
            own = expected(model, self.consumer, case)
            pairs = [pair for two in zip(own, rows, strict=True) for pair in zip(*two, strict=True)]
            same[name] = sum(first == second for first, second in pairs), len(pairs)
        return same


def speak_clearly(model: Any) -> Any:
    """Return the model with likely tokens far apart, and its last one never among them.

    onnxruntime-genai keeps the last token out of beams before it normalises, transformers behind;
    and without a last token it takes the one that pads. A small decoder behind an encoder would
    repeat one token, whatever the encoder reads: it gets a head of its own, and larger weights.
    """
    import torch

    model.config.eos_token_id = model.generation_config.eos_token_id = END
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            for weight in model.parameters():
                weight *= 16 if weight.ndim > 1 else 1
            head = copy.deepcopy(model.get_output_embeddings())
            head.weight.normal_(0, 0.05, generator=torch.Generator().manual_seed(5))
            model.set_output_embeddings(head)
        head = model.get_output_embeddings().weight
        head *= 40
        head[END] = 0
    return model


def expected(model: Any, consumer: str, case: dict[str, Any]) -> list[list[int]]:
    """Return the tokens of PyTorch; of rows padded on the right those of each row alone."""
    import torch

    ids, mask = torch.tensor(case["ids"]), torch.tensor(case["mask"])
    batches = [(ids, mask)]
    if consumer == "genai":
        rows = zip(ids, mask.bool(), strict=True)
        batches = [(row[seen][None], seen[seen].long()[None]) for row, seen in rows]
    return [row for batch in batches for row in _by_generate(model, *batch, case["how"])]


def _by_generate(model: Any, ids: Any, mask: Any, how: dict[str, Any]) -> list[list[int]]:
    """Let a model go on with texts; one that hears is given noise of Whisper's length for each."""
    import torch

    feeds = {"input_ids": ids, "attention_mask": mask}
    if model.main_input_name == "input_features":
        sizes = model.config.num_mel_bins, 2 * model.config.max_source_positions
        drawn = torch.Generator().manual_seed(ids.shape[1])
        feeds = {"input_features": torch.randn(len(ids), *sizes, generator=drawn)}
    torch.manual_seed(1)
    settings = {"do_sample": False, "pad_token_id": 0, "min_new_tokens": TOKENS, **how}
    written = model.generate(**feeds, **settings, max_new_tokens=TOKENS)
    return [row[-TOKENS:] for row in written.tolist()]


def _optimum(folder: str, cases: Iterable[dict[str, Any]]) -> list[list[list[int]]]:
    import torch
    from optimum import onnxruntime
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    head = "SpeechSeq2Seq" if hasattr(config, "num_mel_bins") else "Seq2SeqLM"
    kind = f"ORTModelFor{head if config.is_encoder_decoder else 'CausalLM'}"
    model = getattr(onnxruntime, kind).from_pretrained(folder)
    return [
        _by_generate(model, torch.tensor(case["ids"]), torch.tensor(case["mask"]), case["how"])
        for case in cases
    ]


def _genai(folder: str, cases: Iterable[dict[str, Any]]) -> list[list[list[int]]]:
    import numpy as np
    import onnxruntime_genai as genai

    model, written = genai.Model(folder), []
    for case in cases:
        ids = np.array(case["ids"], np.int32)
        chunk, length = case.get("chunk", ids.shape[1]), ids.shape[1] + TOKENS
        parameters, sizes = genai.GeneratorParams(model), {"batch_size": len(ids), **case["how"]}
        parameters.set_search_options(max_length=length, min_length=length, **sizes)
        generator = genai.Generator(model, parameters)
        for start in range(0, ids.shape[1], chunk):
            generator.append_tokens(ids[:, start : start + chunk])
        while not generator.is_done():
            generator.generate_next_token()
        rows = (generator.get_sequence(row) for row in range(len(ids)))
        written.append([[int(token) for token in row[-TOKENS:]] for row in rows])
    return written


def _main(consumer: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is no answer
    print(", ".join(f"{n} {version(n)}" for n in PACKAGES[consumer]), file=answers, flush=True)
    write = {"optimum": _optimum, "genai": _genai}[consumer]
    folder, cases = json.load(sys.stdin)
    try:
        answer: Any = write(folder, cases) if cases else []
    except Exception as error:  # whatever a consumer raises
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
