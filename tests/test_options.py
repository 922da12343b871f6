"""Records of options: one field is the keyword of the API, the flag and the key of a pipeline."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import Meta

import rmsnorm_export as rx
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.cli.options import flags_of
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.decoder.options import GenerationOptions
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import (
    OptionEntry,
    Options,
    entries,
    keywords,
    only_api,
    option,
    takes,
    written,
)
from rmsnorm_export.printable import did_you_mean
from rmsnorm_export.rewrite.options import (
    HealthOptions,
    InspectOptions,
    OptimizeOptions,
    Requirement,
)
from rmsnorm_export.runtime.consumers import BY_NAME
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.torch_options import ExportOptions, SourceOptions


def digits(text: str) -> int:
    if not text.isdigit():
        raise UsageError("This is no number.", found=text, fix="give digits")
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dummy(Options):
    """What a command might take."""

    mode: Literal["slow", "fast"] = option("slow", help="How it works.")
    size: Annotated[int, Meta(ge=2)] | None = option(None, metavar="N", help="Of it.", shown="2")
    names: Sequence[Literal["a", "b"]] = option(("a",), help="What is used.")
    paths: Sequence[Path] = option((), flag="--path", help="Where it looks.")
    polish: bool = option(True, help="Polish it.")
    shout: bool = option(False, help="Say it loudly.")
    sure: bool | None = option(None, help="Be sure.")
    count: int | None = option(None, written=str, read=digits, help="Of them.")
    hook: Callable[[], None] | None = only_api(None, help="Called at the end.", written=Any)


@takes(Dummy)
def work(model: str, options: Dummy) -> tuple[str, Dummy]:
    """Work on a model.

    Args:
        model: what to work on.

    Returns:
        What it took.
    """
    return model, options


def test_a_field_is_a_keyword_of_the_api() -> None:
    assert work("m", size=3, count="12")[1].count == 12  # type: ignore[arg-type]
    assert work("m", size=np.int64(3))[1] == Dummy(size=3)  # type: ignore[arg-type]
    parameters = inspect.signature(work).parameters
    assert list(parameters) == ["model", *(field.name for field in dataclasses.fields(Dummy))]
    assert parameters["mode"].default == "slow"
    doc = inspect.getdoc(work) or ""
    assert "    size: Of it. Default: 2.\n" in doc
    assert "    polish: Polish it.\n" in doc
    assert doc.index("model: what") < doc.index("hook: Called") < doc.index("Returns:")
    with pytest.raises(TypeError, match="sise"):
        work("m", sise=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="options"):
        work("m", "fast")  # type: ignore[call-arg]


def test_a_field_is_a_flag_of_the_command() -> None:
    command = click.Command("x", params=[*flags_of(Dummy)], callback=lambda **o: print(Dummy(**o)))
    run = CliRunner().invoke
    text = " ".join(run(command, ["--help"]).output.split())
    for words in (
        "--mode [slow|fast] How it works. [default: slow]",
        "--size N Of it. [default: 2]",
        "--names NAME,... What is used. [default: a]",
        "--path PATH Where it looks.",
        "--polish / --no-polish Polish it.",
        "--shout Say it loudly.",
        "--sure / --no-sure Be sure.",
        "--count TEXT Of them.",
    ):
        assert words in text
    assert "hook" not in text
    assert run(command, []).output.strip() == repr(Dummy())
    arguments = ["--mode", "fast", "--size", "4", "--names", "b,a,b", "--path", "x", "--path", "y"]
    arguments += ["--no-polish", "--shout", "--no-sure", "--count", "7"]
    paths = (Path("x"), Path("y"))
    done = Dummy(
        mode="fast", size=4, names=("b", "a"), paths=paths, polish=False, shout=True, sure=False,
        count="7",  # type: ignore[arg-type]
    )  # fmt: skip
    assert run(command, arguments).output.strip() == repr(done)


def test_a_field_is_a_key_of_a_pipeline_file() -> None:
    record = Dummy(size=5, paths=["a"], names=["b"])  # type: ignore[list-item]
    assert record == Dummy(size=5, paths=(Path("a"),), names=("b",))
    assert written(record)["path"] == (Path("a"),)
    assert "hook" not in written(record)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "fasd"}, ("mode = 'fasd'", "did you mean 'fast'?", "slow, fast")),
        ({"names": ["a", "c"]}, ("names", "one of a, b", "at [1]")),
        ({"names": "a"}, ("names = 'a'", "an array")),
        ({"size": 1}, ("size = 1", "an integer from 2")),
        ({"size": True}, ("size = True", "an integer from 2")),
        ({"shout": 1}, ("shout = 1", "true or false")),
        ({"paths": ["\0"]}, ("paths", "a path")),
        ({"count": "x"}, ("This is no number.",)),
    ],
)
def test_values_that_cannot_be(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        Dummy(**options)
    for word in words:
        assert word in str(caught.value)


RECORDS = (
    *(BenchOptions, BuildOptions, ExportOptions, GenerationOptions, InspectOptions),
    *(HealthOptions, OptimizeOptions, Requirement, SourceOptions, VerifyOptions),
)
EVERY = [(record, entry) for record in RECORDS for entry in entries(record)]


@pytest.mark.parametrize(("record", "entry"), EVERY, ids=lambda one: getattr(one, "name", ""))
def test_every_option_refuses_another_type(record: Any, entry: OptionEntry) -> None:
    assert entry.facts.help.endswith((".", "else")), entry.name
    if entry.written is Any or entry.name in ("inputs", "dynamic_shapes"):
        return
    for value in (1j, object(), float("nan"), float("inf")):
        with pytest.raises(UsageError) as caught:
            record(**{entry.name: value})
        assert caught.value.fix


def test_what_a_type_does_not_say_is_taken() -> None:
    arrays: Mapping[str, Any] = {"x": np.ones(2)}
    assert VerifyOptions(inputs=arrays).inputs is arrays
    assert keywords(ExportOptions(kwargs=arrays))["kwargs"]["x"] is arrays["x"]


@pytest.mark.parametrize(
    ("name", "names", "meant"),
    [
        ("ort", BY_NAME, "onnxruntime"),
        ("trt", BY_NAME, "tensorrt"),
        ("ov", BY_NAME, "openvino"),
        ("onnx-runtime", BY_NAME, "onnxruntime"),
        ("optimise", ("export", "optimize"), "optimize"),
        ("taget", ("target", "plugin"), "target"),
        ("", BY_NAME, ""),
        ("x", BY_NAME, ""),
    ],
)
def test_a_name_that_was_meant(name: str, names: Mapping[str, object], meant: str) -> None:
    assert did_you_mean(name, names) == (f"did you mean '{meant}'? " if meant else "")


def test_an_option_that_there_is_not_is_a_mistake_of_the_call() -> None:
    with pytest.raises(
        TypeError, match=r"optimize\(\) has no option 'targt'; did you mean 'target'"
    ):
        rx.optimize("model.onnx", targt="ort")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no option 'zzz'; its options are target, "):
        rx.optimize("model.onnx", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="tensorrt is a runtime: use --for tensorrt"):
        rx.optimize("model.onnx", target="tensorrt")  # type: ignore[arg-type]
