"""An option is one field of a record; API, pipeline file and command line are made from it.

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class BuildOptions(Options):
        tf32: bool = option(False, help="Let TensorRT round f32 operands of products to 10 bits.")

    @takes(BuildOptions)
    def build_engine(model: Source, path: Path, options: BuildOptions) -> EngineResult: ...

``build_engine(model, path, tf32=True)`` is the keyword, ``--tf32`` the flag of the command and
``tf32 = true`` the key of its table. msgspec checks the annotation: the type and its bounds.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Meta

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import did_you_mean

if TYPE_CHECKING:
    from rmsnorm_export.system.files import StrPath

    FilePath = StrPath
else:
    FilePath = Path  # what a string becomes

A = TypeVar("A", contravariant=True)
B = TypeVar("B", contravariant=True)
C = TypeVar("C", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

_WIDTH = 96
_KEY = "option"

_HUGE = sys.float_info.max
MOST_SEED = 2**63 - 1
MOST_INT32 = 2**31 - 1
"""Largest number of what is written into ONNX, Triton's and Kubernetes' files."""

Progress = Callable[[str, int, int], None]
"""Called with the current work, the finished steps and the number of steps."""

Seed = Annotated[int, Meta(ge=0, le=MOST_SEED)]
Count = Annotated[int, Meta(ge=1, le=MOST_INT32)]
Most = Annotated[int, Meta(ge=0, le=MOST_INT32)]
Bound = Annotated[float, Meta(ge=0, le=_HUGE)]
Seconds = Annotated[float, Meta(gt=0, le=_HUGE)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionFacts:
    """Facts of an option beyond its name, type and default.

    Attributes:
        help: what it does, of a switch what True does; whole sentences.
        shown: the default for people, where the value, e.g. None, does not say it.
        metavar: what stands for the value in ``--help``.
        flag: on the command line; its words are the key of the pipeline file, too.
        written: the type as people write it, where ``read`` makes another of it.
        read: makes the value of what was written, or refuses it with ``UsageError``.
        choices: the names that there are, where the type may not list them all.
        meant: says of a name that is none of them what it is, and which option takes it; or "".
        cli, toml: whether the command line and the pipeline file have it.
        file: the value may be a path, although its type does not say so.
    """

    help: str = ""
    shown: str = ""
    metavar: str = ""
    flag: str = ""
    written: Any = None
    read: Callable[[Any], Any] | None = None
    choices: Callable[[], tuple[str, ...]] | None = None
    meant: Callable[[str], str] | None = None
    cli: bool = True
    toml: bool = True
    file: bool = False


def option(default: Any, /, **facts: Any) -> Any:
    """Make a field of a record: its default, or ``REQUIRED``, and the ``OptionFacts`` of it."""
    return dataclasses.field(default=default, metadata={_KEY: OptionFacts(**facts)})


REQUIRED = dataclasses.MISSING


def only_api(default: Any, *, help: str, written: Any = None) -> Any:
    """Make a field that is a keyword of the API and nothing else."""
    return option(default, help=help, written=written, cli=False, toml=False)


def progress_option() -> Any:
    """Make the field ``progress``: what is called with the work at hand."""
    what = "Called with the current work, the finished steps and the number of steps."
    return only_api(None, help=what, written=Any)


@dataclasses.dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option of a record.

    Attributes:
        name: of the field, which is the keyword of the API.
        hint: its type.
        default: ``REQUIRED`` where there is none.
        facts: what else is known.
    """

    name: str
    hint: Any
    default: Any
    facts: OptionFacts

    @property
    def flag(self) -> str:
        """On the command line, e.g. ``--max-batch``."""
        return self.facts.flag or "--" + self.name.replace("_", "-")

    @property
    def key(self) -> str:
        """In a pipeline file, e.g. ``max_batch``."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def written(self) -> Any:
        """Return the type of the value as people write it."""
        if self.facts.choices is not None:
            return Literal[self.facts.choices()] | None
        return self.hint if self.facts.written is None else self.facts.written

    @property
    def is_path(self) -> bool:
        """Return whether a string is the name of a file or folder."""
        return self.facts.file or Path in [item_type(one) or one for one in members(self.written)]

    def convert(self, value: Any) -> Any:
        """Check a value, and read it.

        Raises:
            OptionError: it cannot be used.
        """
        if value is None and self.default is None:
            return None
        if isinstance(value, numbers.Real) and not isinstance(value, int | float):  # NumPy's
            value = int(value) if isinstance(value, numbers.Integral) else float(value)
        try:
            result = msgspec.convert(value, self.written, dec_hook=_path)
            result = result if self.facts.read is None else self.facts.read(result)
        except msgspec.ValidationError as error:
            what = f"The value of {self.name.replace('_', ' ')} cannot be used."
            found = f"{self.name} = {value!r:.200}"
            raise OptionError(self, what, found=found, fix=self._fix(value, error)) from error
        except OptionError:
            raise
        except UsageError as error:
            raise OptionError(self, error.what, found=error.found, fix=error.fix) from error
        if isinstance(result, list):  # a record does not change; a name that stands twice is one
            result = tuple(dict.fromkeys(result) if names_in(self.written) else result)
        return result

    def _fix(self, value: object, error: msgspec.ValidationError) -> str:
        names = names_in(self.written)
        items = value if isinstance(value, list | tuple) else [value]
        wrong = next((one for one in items if one not in names), "")
        meant = "" if self.facts.meant is None else self.facts.meant(str(wrong))
        hint = meant or did_you_mean(str(wrong), names)
        words = str(error).replace("`", "").replace(" - at $", " at ")
        return f"{hint}give {expected(self.hint if self.facts.written else self.written)} ({words})"


class OptionError(UsageError):
    """An option whose value cannot be used.

    Attributes:
        entry: the option.
    """

    def __init__(self, entry: OptionEntry, what: str, *, found: str, fix: str) -> None:
        super().__init__(what, found=found, fix=fix)
        self.entry = entry


class Options:
    """Base of the records: values are read and checked when one is made.

    Raises:
        UsageError: a value that the option does not take, or options that exclude each other.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        record: Any = type(self)
        for entry in entries(record):
            object.__setattr__(self, entry.name, entry.convert(getattr(self, entry.name)))
        self.agree()

    def agree(self) -> None:
        """Raise ``UsageError`` for options that do not go together."""


def _path(kind: Any, value: Any) -> Any:
    """Make a path, for which msgspec asks."""
    if kind is not Path or not isinstance(value, str | Path):
        raise TypeError(f"Expected a path, got {type(value).__name__}")
    if not str(value) or "\0" in str(value):
        raise ValueError("Expected a path")
    return Path(value)


@functools.cache
def entries(record: Any) -> tuple[OptionEntry, ...]:
    """Return the options of a record, in their order."""
    hints = typing.get_type_hints(record, include_extras=True)
    return tuple(
        OptionEntry(one.name, hints[one.name], one.default, one.metadata.get(_KEY, OptionFacts()))
        for one in dataclasses.fields(record)
    )


def written(record: Any) -> dict[str, Any]:
    """Return the keys of a pipeline file that a record has, with their values."""
    kind: Any = type(record)
    return {one.key: getattr(record, one.name) for one in entries(kind) if one.facts.toml}


def keywords(record: Any, base: Any = None) -> dict[str, Any]:
    """Return the options of a record, or only those of a base of it, as keyword arguments."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(base or record)}


def members(hint: Any) -> list[Any]:
    """List the types of a union without None, and without what is annotated."""
    if typing.get_origin(hint) is Annotated:
        return members(typing.get_args(hint)[0])
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return [hint]
    each = (members(one) for one in typing.get_args(hint) if one is not types.NoneType)
    return [one for several in each for one in several]


def item_type(hint: Any) -> Any:
    """Return the type of the items of a sequence; None for what is none."""
    sequence = typing.get_origin(hint) in (tuple, Sequence)
    return typing.get_args(hint)[0] if sequence else None


def names_in(hint: Any) -> tuple[str, ...]:
    """Return the names that a value, or an item of it, may be."""
    kinds = (item_type(member) or member for member in members(hint))
    return sum((typing.get_args(one) for one in kinds if typing.get_origin(one) is Literal), ())


_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def expected(hint: Any) -> str:
    """Say for people what a value must be: ``an integer from 1``."""
    if typing.get_origin(hint) is Annotated:
        kind, meta, *_ = typing.get_args(hint)
        words = {"from": meta.ge, "above": meta.gt, "to": meta.le}
        ends = (f" {word} {end}" for word, end in words.items() if end not in (None, _HUGE))
        return expected(kind) + "".join(ends)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(expected(one) for one in args if one is not types.NoneType)
    if origin is Literal:
        return f"one of {', '.join(args)}" if args[1:] else str(args[0])
    if (item := item_type(hint)) is not None:
        return f"an array, of which each is {expected(item)}"
    return "a table" if origin is Mapping else _NAMES.get(hint, "a path")


class _Taker(Protocol[P, R]):
    """Turns the last parameter of a function, a record, into its keywords."""

    @typing.overload
    def __call__(self, function: Callable[[A, R], T], /) -> Callable[Concatenate[A, P], T]: ...
    @typing.overload
    def __call__(
        self, function: Callable[[A, B, R], T], /
    ) -> Callable[Concatenate[A, B, P], T]: ...
    @typing.overload
    def __call__(
        self, function: Callable[[A, B, C, R], T], /
    ) -> Callable[Concatenate[A, B, C, P], T]: ...


def takes(record: Callable[P, R]) -> _Taker[P, R]:
    """Make a function of some arguments and a record one of these arguments and its options.

    Signature and docstring get every option, with its default and its sentence.
    """
    cls: Any = record

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        *own, last = signature.parameters.values()
        hints = {field.name: field.type for field in dataclasses.fields(cls)}
        named = f"its options are {', '.join(hints)}"

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            own_ones = {p.name: options.pop(p.name) for p in own if p.name in options}
            if unknown := next((one for one in options if one not in hints), None):
                hint = did_you_mean(unknown, hints).strip()
                raise TypeError(f"{function.__name__}() has no option {unknown!r}; {hint or named}")
            return function(*args, **own_ones, **{last.name: cls(**options)})

        listed = [
            inspect.Parameter(
                e.name, inspect.Parameter.KEYWORD_ONLY, default=e.default, annotation=hints[e.name]
            )
            for e in entries(cls)
        ]
        call.__signature__ = signature.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.getdoc(function) or "", entries(cls))
        return call

    return typing.cast("_Taker[P, R]", decorate)


def _of_python(text: str, listed: Sequence[OptionEntry]) -> str:
    """Return a sentence of ``--help`` for Python: keywords for flags, and no exit codes."""
    keywords_of = {entry.flag: entry.name for entry in listed}
    text = re.sub(r" \(exit code \d\)", "", text)
    return re.sub(
        r"--[a-z][a-z-]*[a-z]",
        lambda flag: keywords_of.get(flag[0], flag[0][2:].replace("-", "_")),
        text,
    )


def _documented(doc: str, listed: Sequence[OptionEntry]) -> str:
    """Put the options at the end of the arguments of a docstring."""
    lines = ""
    for entry in listed:
        facts = entry.facts
        said = facts.help + (f" Default: {facts.shown}." if facts.shown else "")
        text = f"{entry.name}: {_of_python(said, listed)}"
        lines += "\n" + textwrap.fill(
            text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
        )
    head, mark, rest = doc.partition("Args:\n")
    arguments, gap, after = rest.partition("\n\n")
    return f"{head}{mark or 'Args:'}{arguments.rstrip()}{lines}{gap}{after}"
