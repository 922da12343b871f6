"""What ``optimize`` writes and reports is what was frozen; see ``tests.tools.golden``.

Every tenth model here; ``python -m tests.tools.golden`` compares them all.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import zlib
from pathlib import Path

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from tests.recognize.text_models import feeds
from tests.sample import sampled
from tests.tools.golden import __main__ as command
from tests.tools.golden.frozen import FROZEN, Frozen, entry
from tests.tools.golden.models import models
from tests.tools.judge import InvalidError, Subject, judge

ONE_IN = 10
ELSEWHERE = (
    *("spelling/", "drawn/", "alike/", "lower/", "hostile/", "quantized_"),  # have tests that run
    "bounded_work/",  # not for running
    # ONNX Runtime's own operators have other roundings, and outputs, than the evaluator knows.
    *("written_out/a_residual", "written_out/a_second", "written_out/a_scale_of_another"),
    "parts_in_functions/a_function_that_nothing_calls_is_not_counted[portable-Skip",
    "written_out/a_scale_that_is_no_row[SimplifiedLayerNormalization-3,1-float16",
)
"""Models whose numbers are not judged here."""


def _sampled(name: str, remainder: int = 0) -> bool:
    """Return whether a model is compared; of the others this says the same when one is added."""
    return zlib.crc32(name.encode()) % ONE_IN == remainder


def test_bytes_and_reports() -> None:
    frozen = Frozen.read(FROZEN)
    if frozen.other_versions():
        pytest.skip(f"the bytes are those of other versions: {frozen.other_versions()}")
    now = {model.name: entry(model) for model in models(_sampled)}
    gone = {name for name in frozen.entries if _sampled(name)} - {*now}
    assert not gone, "no such models any more"
    differences = [frozen.difference(name, text) for name, text in now.items()]
    assert not any(differences), "\n".join(filter(None, differences))


@sampled("remainder", range(ONE_IN), {1})
def test_collected_models_compute_what_they_did(remainder: int) -> None:
    """Also where a result was frozen anew: If, Loop and functions among them, in every target."""
    settings, subjects = [{"target": one, "numerics": "reordered"} for one in TARGETS], 0
    for model in models(lambda one: not one.startswith(ELSEWHERE) and _sampled(one, remainder)):
        with contextlib.suppress(InvalidError):  # of operators that ONNX Runtime or onnx has not
            source = onnx.shape_inference.infer_shapes(model.source)  # the checker wants outputs'
            subject = Subject(source, feeds(source))
            verdict = judge(subject, settings, functools.partial(rx.optimize, **model.options))
            assert not verdict.findings, model.name
            subjects += 1
    assert subjects > 50


def test_only_what_is_named_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "frozen"
    shutil.copytree(FROZEN, folder)
    expected = Frozen.read(folder)
    tampered = Frozen.read(folder)
    tampered.change("drawn/100", "drawn/100 -\n  portable -\n    fused nothing")
    tampered.change("drawn/101", "")
    tampered.entries.update({name: f"{name} -" for name in ("drawn/102", "drawn/10none")})
    tampered.write(folder)
    monkeypatch.setattr(command, "FROZEN", folder)
    words = ["-k", "drawn/10", "--freeze", "drawn/100", "drawn/101", "drawn/10n*", "drawn/9"]
    assert command.main(words) == 1
    printed = capsys.readouterr().out
    for line in ("frozen: drawn/100: changed", "frozen: drawn/101: new", "\ndrawn/102: changed",
                 "frozen: drawn/10none: gone", "    -    fused nothing\n",
                 "nothing was frozen for drawn/9", "1 differences"):  # fmt: skip
        assert line in printed
    left = Frozen.read(folder).entries
    assert {n for n in {*expected.entries, *left} if expected.entries.get(n) != left.get(n)} == {
        "drawn/102"
    }
