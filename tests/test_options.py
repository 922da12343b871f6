"""Records of options: one field is the keyword of the API, the flag and the key of a pipeline."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_origin

import click
import pytest
from click.testing import CliRunner

import rmsnorm_export as rx
from rmsnorm_export.benchmark.options import BenchOptions, PeerName, Provider
from rmsnorm_export.benchmark.sessions import PROVIDERS
from rmsnorm_export.benchmark.worker import PEERS
from rmsnorm_export.cli.options import click_options
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.type_names import float_name
from rmsnorm_export.options import (
    REQUIRED,
    OptionEntry,
    Options,
    entries,
    fits,
    flat,
    item_type,
    keywords,
    make,
    members,
    only_api,
    option,
    spread,
    takes,
    written,
)
from rmsnorm_export.pipeline import read
from rmsnorm_export.pipeline.tables import TABLES
from rmsnorm_export.rewrite.options import (
    ExportOptions,
    InspectOptions,
    OptimizeOptions,
    SourceOptions,
)
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.tensorrt.engine.options import BuildOptions


def digits(text: str) -> int:
    if not text.isdigit():
        raise UsageError("This is no number.", found=text, fix="give digits")
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dummy(Options):
    """What a command might take."""

    mode: Literal["slow", "fast"] = option("slow", help="How it works.")
    dummy_size: int | None = option(None, least=2, metavar="N", help="How large it is.", shown="2")
    names: Sequence[Literal["a", "b"]] = option(("a",), help="What is used.")
    paths: Sequence[Path] = option((), flag="--path", help="Where it looks. Repeat for several.")
    polish: bool = option(True, help="Do not polish.")
    shout: bool = option(False, help="Say it loudly.")
    sure: bool | None = option(None, help="Be sure.")
    count: int | None = option(None, written=str, read=digits, old=("--number",), help="Of them.")
    hook: Any = only_api(None, help="Called at the end.")


@takes(Dummy)
def work(model: str, options: Dummy) -> tuple[str, Dummy]:
    """Work on a model.

    Args:
        model: what to work on.

    Returns:
        What was given.
    """
    return model, options


@click.command()
@click_options(Dummy)
def command(**options: Any) -> None:
    click.echo(repr(work("m", **options)[1]))


def test_a_field_is_a_keyword_of_the_api() -> None:
    assert work("m", dummy_size=3, count="12") == ("m", Dummy(dummy_size=3, count=12))
    parameters = inspect.signature(work).parameters
    assert list(parameters) == ["model", *(field.name for field in dataclasses.fields(Dummy))]
    assert parameters["mode"].default == "slow"
    doc = inspect.getdoc(work) or ""
    assert "    dummy_size: How large it is. Default: 2.\n" in doc
    assert "    polish: False: do not polish.\n" in doc
    assert doc.index("model: what") < doc.index("hook: Called") < doc.index("Returns:")
    with pytest.raises(TypeError, match=r"work\(\) has no option 'dumy_size'; .* 'dummy_size'"):
        work("m", dumy_size=3)
    with pytest.raises(TypeError, match="options are keywords"):
        work("m", "fast")


def test_a_field_is_a_flag_of_the_command() -> None:
    run = CliRunner().invoke
    text = " ".join(run(command, ["--help"]).output.split())
    for words in (
        "--mode [slow|fast] How it works. [default: slow]",
        "--dummy-size N How large it is. [default: 2] [x>=2]",
        "--names NAME,... What is used. [default: a]",
        "--path PATH Where it looks. Repeat for several.",
        "--no-polish Do not polish.",
        "--shout Say it loudly.",
        "--sure / --no-sure Be sure.",
        "--count TEXT Of them.",
    ):
        assert words in text
    assert "hook" not in text
    assert "--number" not in text
    assert run(command, []).output.strip() == repr(Dummy())
    arguments = ["--mode", "fast", "--dummy-size", "4", "--names", "b,a", "--path", "x"]
    arguments += ["--path", "y", "--no-polish", "--shout", "--no-sure", "--number", "7"]
    given = Dummy(
        mode="fast", dummy_size=4, names=("b", "a"), paths=(Path("x"), Path("y")),
        polish=False, shout=True, sure=False, count=7,
    )  # fmt: skip
    assert run(command, arguments).output.strip() == repr(given)
    assert run(command, ["--dummy-size", "1"]).exit_code == 2
    assert isinstance(run(command, ["--count", "x"]).exception, UsageError)


def test_a_field_is_a_key_of_a_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Table(Options):
        own: str = option(REQUIRED, help="Only a file has it.")
        options: Dummy = flat(Dummy)

    Table.__annotations__.update(own=str, options=Dummy)
    monkeypatch.setitem(TABLES, "dummy", Table)
    path = tmp_path / "p.toml"
    head = '[pipeline]\nname = "x"\n[dummy]\nown = "y"\n'
    path.write_text(head + 'dummy_size = 5\npath = ["a"]\nnames = ["b"]\ncount = "6"\n')
    table = read.read_document(path).tables["dummy"]
    expected = Dummy(dummy_size=5, paths=(tmp_path / "a",), names=("b",), count=6)
    assert table.options == expected
    assert written(table)["path"] == (tmp_path / "a",)
    assert "hook" not in written(table)
    for wrong, words in (
        ("dummy_size = 1", "line 5, [dummy] dummy_size: the value does not fit"),
        ('count = "x"', "line 5, [dummy] count: this is no number"),
        ("dumy_size = 2", "did you mean dummy_size?"),
        ("hook = 1", "there is no such key"),
    ):
        path.write_text(head + wrong)
        with pytest.raises(UsageError) as caught:
            read.read_document(path)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "quick"}, ("There is no such mode.", "'quick'", "slow, fast")),
        ({"names": ["a", "c"]}, ("There is no such name.", "'c'", "a, b")),
        ({"names": ["a", "a"]}, ("A name is named twice.",)),
        ({"dummy_size": 1}, ("dummy size is too small", "dummy_size = 1", "2 or more")),
        ({"dummy_size": float("nan")}, ("of another type", "an integer from 2")),
        ({"count": "x"}, ("This is no number.",)),
    ],
)
def test_values_that_cannot_be(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        Dummy(**options)
    for word in words:
        assert word in str(caught.value)


RECORDS = (
    BenchOptions,
    BuildOptions,
    ExportOptions,
    InspectOptions,
    OptimizeOptions,
    PackageOptions,
    SourceOptions,
    VerifyOptions,
    *TABLES.values(),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_option_says_what_it_does(record: Any) -> None:
    for entry in spread(record):
        assert entry.facts.help.endswith(".") or "; else" in entry.facts.help, entry.name
        assert entry.facts.help[:1].strip(), entry.name
    required = {e.key: "x" for e in spread(record) if e.default is dataclasses.MISSING}
    made = make(record, required)
    if not required:
        assert keywords(made) == keywords(record())


@pytest.mark.parametrize(
    ("function", "record"),
    [(rx.optimize, OptimizeOptions), (rx.inspect, InspectOptions), (rx.verify, VerifyOptions),
     (rx.bench, BenchOptions), (rx.build_engine, BuildOptions), (rx.package_model, PackageOptions)],
)  # fmt: skip
def test_the_record_is_the_signature(function: Any, record: Any) -> None:
    parameters = inspect.signature(function).parameters.values()
    given = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert given == {entry.name: entry.default for entry in entries(record)}


def test_names_of_peers_and_providers() -> None:
    assert tuple(PEERS) == PeerName.__args__  # type: ignore[attr-defined]
    assert tuple(PROVIDERS) == Provider.__args__  # type: ignore[attr-defined]


def test_float_types_are_read_in_every_spelling() -> None:
    for name, spellings in {
        "f32": ("f32", "fp32", "float32", "Float32"),
        "f16": ("f16", "fp16", "float16", "half"),
        "bf16": ("bf16", "bfloat16"),
    }.items():
        assert {float_name(spelling) for spelling in spellings} == {name}
        assert {SourceOptions(dtype=one).dtype for one in spellings} == {name}  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no type of this name"):
        float_name("int8")


def records(of: type[Options] = Options) -> list[type[Options]]:
    """Every record of the package."""
    found = {kind.__qualname__: kind for kind in of.__subclasses__()}  # slots makes classes twice
    below = [one for kind in found.values() for one in records(kind)]
    ours = [kind for kind in found.values() if kind.__module__.startswith("rmsnorm_export")]
    return [*ours, *below]


def scalars(hint: Any) -> set[Any]:
    """The scalar types in a type."""
    inner = [item_type(member) or member for member in members(hint)]
    return {str if get_origin(one) is Literal else one for one in inner}


def unusable(entry: OptionEntry) -> list[object]:
    """Values that no option of this type and range takes."""
    kinds, facts = scalars(entry.hint), entry.facts
    if kinds == {Any}:
        return []
    bad: list[object] = [1j, object(), b"18"]
    if kinds & {int, float}:
        bad += [float("nan"), float("inf"), float("-inf"), -1 if facts.least is None else -2]
        bad += [facts.least - 1] if facts.least is not None else []
        bad += [facts.most + 1] if facts.most is not None else []
    if int in kinds:
        bad += [True, 1.5, "18" if facts.read is None else "eighteen"]
    elif float in kinds:
        bad += [True, "0.5"]
    elif kinds == {bool}:
        bad += [0, 1, "yes"]
    elif str in kinds:
        bad += [18, True]
    many = item_type(members(entry.hint)[0]) is not None and facts.read is None
    return [[value] for value in bad] + [18] if many else bad


def test_what_a_type_does_not_say_is_taken() -> None:
    for value in (None, 1, "x", object()):
        assert fits(value, Any)
        assert fits({"x": value}, Mapping[str, Any] | None)
    assert not fits(None, int)
    assert fits(len, Callable[[int], int] | None)


EVERY = [
    (record, entry)
    for record in sorted(set(records()), key=lambda record: record.__qualname__)
    for entry in entries(record)
    if not entry.facts.flat
]


def required(record: type[Options], **given: object) -> dict[str, object]:
    """Arguments with which the record can be made."""
    needed = {e.name: "x" for e in entries(record) if e.default is REQUIRED}
    return {**needed, **given}


def test_every_number_is_bounded_on_one_side_at_least_or_checked_by_its_record() -> None:
    kinds = [scalars(entry.hint) for _, entry in EVERY]
    assert sum(bool(kind & {int, float}) for kind in kinds) > 20
    assert {"ExportOptions", "BenchOptions", "Prove"} <= {record.__name__ for record, _ in EVERY}


@pytest.mark.parametrize(
    ("record", "entry"), EVERY, ids=[f"{r.__name__}.{e.name}" for r, e in EVERY]
)
def test_a_value_of_another_type_or_out_of_range_is_a_usage_error(
    record: type[Options], entry: OptionEntry
) -> None:
    for value in unusable(entry):
        with pytest.raises(UsageError) as caught:
            print(record(**required(record, **{entry.name: value})), value)
        assert caught.value.fix, value


NUMBERS = [
    (record, entry)
    for record, entry in EVERY
    if scalars(entry.hint) & {int, float} and entry.facts.cli and entry.facts.read is None
]


@pytest.mark.parametrize(
    ("record", "entry"), NUMBERS, ids=[f"{r.__name__}.{e.name}" for r, e in NUMBERS]
)
def test_the_command_line_and_the_pipeline_file_refuse_the_same_numbers(
    record: type[Options], entry: OptionEntry, tmp_path: Path
) -> None:
    @click.command()
    @click_options(record)
    def made(**options: Any) -> None:
        record(**options)

    values = [v[0] if isinstance(v, list) else v for v in unusable(entry) if v != 18]
    numbers = [value for value in values if isinstance(value, int | float) and value is not True]
    tables = [name for name, table in TABLES.items() if entry in spread(table)]
    assert numbers
    for number in numbers:
        text = str(number)
        values = [text] * (2 if entry.name == "kserve_replicas" else 1)
        needed = [f"{e.flag}=x" for e in entries(record) if e.default is REQUIRED]
        done = CliRunner().invoke(made, [*needed, entry.flag, *values])
        assert isinstance(done.exception, UsageError | SystemExit), (text, done.output)
        assert done.exit_code in (1, 2), text  # 1: an error that main would explain
        for table in tables if entry.facts.toml else []:
            value = f"[{text}, {text}]" if len(values) > 1 else text
            value = f"[{text}]" if item_type(entry.hint) and len(values) == 1 else value
            path = tmp_path / "p.toml"
            path.write_text(f'[pipeline]\nname = "n"\n[{table}]\n{entry.key} = {value}\n')
            with pytest.raises(UsageError, match=rf"\[{table}\]"):
                read.read_document(path)
