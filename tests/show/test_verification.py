"""Two models compared, for people: a row an output; greedy tokens, however many, in three lines."""

from __future__ import annotations

import numpy as np
from samples import Page

from rmsnorm_export.compare.outputs import Bounds, compare_outputs
from rmsnorm_export.compare.result import GREEDY, Verification
from rmsnorm_export.show import to_html, to_text

STEPS = 40
COMPARED = ("./my-llama", "decoder/")


def verified(off: dict[int, float], name: str = "y{}", **facts: object) -> Verification:
    """Compare outputs, each 1 to 8; the first element of some is off."""
    first = {name.format(i): np.arange(1, 9, dtype=np.float32) for i in range(1, STEPS + 1)}
    second = {key: values.copy() for key, values in first.items()}
    for number, by in off.items():
        second[name.format(number)][0] += by
    outputs = tuple(compare_outputs(first, second, Bounds()))
    return Verification(outputs, "onnxruntime 9.9", (), source=f"{STEPS} tokens {GREEDY}", **facts)


def greedy(off: dict[int, float]) -> Verification:
    notes = (f"{2 * STEPS} of {2 * STEPS} greedy tokens are the same",)
    return verified(off, "logits of token {}", notes=notes, backends=("torch", "onnxruntime"))


def test_greedy_tokens_are_three_lines() -> None:
    lines = to_text(greedy({3: 2**-20, 7: 2**-19}), compared=COMPARED).splitlines()
    assert lines == [
        "the models agree: 40 of 40 steps within bounds; 80 of 80 greedy tokens are the same",
        "  A  ./my-llama (torch), B  decoder/ (onnxruntime): 40 tokens generated greedily",
        "  largest difference 1.91e-06 (0.0008 allowed), in the logits of token 7",
    ]


def test_a_step_that_differs_is_a_row() -> None:
    outcome = greedy({3: 1e-6, 7: 0.5})
    text = to_text(outcome, compared=COMPARED)
    assert "the models DIFFER: 39 of 40 steps" in text
    assert [line.split()[3] for line in text.splitlines() if "FAILED" in line] == ["7"]
    assert "token 7 " in to_text(outcome, verbose=1)
    assert to_text(outcome, verbose=1).count("logits of token") == STEPS + 1
    page = Page(to_html(outcome, compared=COMPARED))
    assert [tag for tag, _ in page.elements].count("tr") == STEPS + 1
    assert "details" not in page.tags


def test_the_steps_of_a_page_open_at_a_click() -> None:
    assert "details" in Page(to_html(greedy({}), compared=COMPARED)).tags


def test_an_error_names_a_few_of_the_outputs_that_failed() -> None:
    error = greedy(dict.fromkeys(range(1, STEPS + 1), 0.5)).error()
    assert error is not None
    assert error.found.count("logits of token") == 3
    assert error.found.endswith("; 37 outputs more")
