"""An option is one field of a record; API, pipeline file and command line are made from it.

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class BuildOptions(Options):
        tf32: bool = option(False, help="Let TensorRT round f32 operands of products to 10 bits.")

    @takes(BuildOptions)
    def build_engine(model: Source, path: Path, options: BuildOptions) -> EngineResult: ...

``build_engine(model, path, tf32=True)`` is the keyword, ``--tf32`` the flag of the command and
``tf32 = true`` the key of its table; the sentence stands in all three references.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import numbers
import os
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import did_you_mean, nearest
from rmsnorm_export.records import Limits, expected, limits_text
from rmsnorm_export.system.progress import shown_progress

A = TypeVar("A", contravariant=True)
B = TypeVar("B", contravariant=True)
C = TypeVar("C", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

_WIDTH = 96
_KEY = "option"

MOST_SEED = 2**63 - 1
MOST_INT32 = 2**31 - 1
"""Largest number of what is written into ONNX, Triton's and Kubernetes' files."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionFacts:
    """What is known of an option beyond its name, type and default.

    Attributes:
        help: what it does, whole sentences.
        python: what more there is to say of it in Python.
        least, most: smallest and largest number that it takes, everywhere in the value.
        shown: the default for people, where the value, e.g. None, does not say it.
        metavar: what stands for the value in ``--help``.
        flag: on the command line; its words are the key of the pipeline file, too.
        old: flags that it had before; they work and are not shown.
        written: its type on the command line and in a pipeline file; None: that of the field.
        read: makes the value of what was written; it is called with strings, tuples of strings and
            dictionaries only, and raises ``UsageError``.
        choices: the names that there are, where the type may not list them all.
        cli, toml: whether the command line and the pipeline file have it.
        flat: the field is a record, whose options stand among those of this one.
    """

    help: str = ""
    python: str = ""
    least: float | None = None
    most: float | None = None
    shown: str = ""
    metavar: str = ""
    flag: str = ""
    old: tuple[str, ...] = ()
    written: Any = None
    read: Callable[[Any], Any] | None = None
    choices: Callable[[], tuple[str, ...]] | None = None
    cli: bool = True
    toml: bool = True
    flat: bool = False

    @property
    def within(self) -> Limits:
        """Smallest and largest number."""
        return self.least, self.most


def _field_maker(facts: Callable[P, OptionFacts]) -> Callable[Concatenate[Any, P], Any]:
    def make_field(default: Any, /, *args: P.args, **given: P.kwargs) -> Any:
        return dataclasses.field(default=default, metadata={_KEY: facts(*args, **given)})

    return make_field


option = _field_maker(OptionFacts)
"""A field of a record: its default, or ``REQUIRED``, and what ``OptionFacts`` says of it."""

REQUIRED = dataclasses.MISSING


def only_api(default: Any, *, help: str) -> Any:
    """A field that is a keyword of the API and nothing else."""
    return option(default, help=help, cli=False, toml=False)


def flat(record: Callable[[], Any]) -> Any:
    """A field that holds a record, whose options stand among those of this one."""
    return dataclasses.field(default_factory=record, metadata={_KEY: OptionFacts(flat=True)})


@dataclasses.dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option of a record.

    Attributes:
        name: of the field, which is the keyword of the API.
        hint: its type.
        default: ``dataclasses.MISSING`` where it is required.
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
        """The type of the value on the command line and in a pipeline file."""
        return self.hint if self.facts.written is None else self.facts.written

    def error(self, what: str, value: object, fix: str) -> OptionError:
        """What is wrong with a value of this option."""
        return OptionError(self, what, found=f"{self.name} = {value!r:.200}", fix=fix)

    def read(self, value: Any) -> Any:
        """The value, read where it is one that was written, if it can be used.

        Raises:
            OptionError: it cannot.
        """
        was_read = self.facts.read is not None and _is_written(value)
        if self.facts.read is not None and was_read:
            try:
                value = self.facts.read(value)
            except OptionError:
                raise
            except UsageError as error:
                raise OptionError(self, error.what, found=error.found, fix=error.fix) from error
        choices, alone = _choices(self.hint)
        choices = choices if self.facts.choices is None else self.facts.choices()
        many = isinstance(value, tuple | list | set | frozenset)
        items = list(value) if many else [] if value is None else [value]
        if not alone:
            self._check_type(value, was_read=was_read)
        for number, item in enumerate(items):
            if choices and item not in choices and (alone or isinstance(item, str)):
                raise self.error(
                    f"There is no such {_words(self.name, one=many)}.",
                    item,
                    did_you_mean(str(item), choices) + f"use one of {', '.join(choices)}",
                )
            if choices and item in items[:number]:
                raise self.error(
                    f"A {_words(self.name, one=True)} is named twice.", item, "name it once"
                )
            self._check_number(item)
        return value

    def _check_number(self, item: object) -> None:
        if not isinstance(item, int | float):
            return
        least, most = self.facts.within
        problem, fix = "", "give a number"
        if not math.isfinite(item):
            problem = "is no finite number"
        elif least is not None and item < least:
            problem, fix = "is too small", f"give {least:g} or more"
        elif most is not None and item > most:
            problem, fix = "is too large", f"give a number {limits_text(self.facts.within)}"
        if problem:
            raise self.error(f"The value of {_words(self.name)} {problem}.", item, fix)

    def _check_type(self, value: object, *, was_read: bool) -> None:
        """Refuse a value of another type; what ``read`` makes is its own affair."""
        if value is None and (self.default is None or self.hint is Any):
            return
        if not (was_read or fits(value, self.hint)):
            raise self.error(
                f"The value of {_words(self.name)} is of another type.",
                value,
                f"give {expected(self.hint, self.facts.within)}",
            )


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
            value = getattr(self, entry.name)
            if not entry.facts.flat:
                read = entry.read(value)
                if read is not value:
                    object.__setattr__(self, entry.name, read)
        self.agree()

    def agree(self) -> None:
        """Raise ``UsageError`` for options that do not go together."""


@functools.cache
def entries(record: Any) -> tuple[OptionEntry, ...]:
    """The options of a record, in their order."""
    hints = typing.get_type_hints(record)
    found = []
    for field in dataclasses.fields(record):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        facts = field.metadata.get(_KEY, OptionFacts())
        found.append(OptionEntry(field.name, hints[field.name], default, facts))
    return tuple(found)


def spread(record: Any) -> Iterator[OptionEntry]:
    """The options of a record with those of the records in it."""
    for entry in entries(record):
        if entry.facts.flat:
            yield from spread(entry.hint)
        else:
            yield entry


def make(record: Callable[..., T], values: Mapping[str, Any]) -> T:
    """A record from the keys of a pipeline file; others than its own are left alone.

    Raises:
        UsageError: a value that cannot be used.
    """
    given = {}
    fields: Any = record
    for entry in entries(fields):
        if entry.facts.flat:
            given[entry.name] = make(entry.hint, values)
        elif entry.facts.toml and entry.key in values:
            given[entry.name] = values[entry.key]
    return record(**given)


def written(record: Any) -> dict[str, Any]:
    """The keys of a pipeline file that a record has, with their values."""
    values: dict[str, Any] = {}
    kind: Any = type(record)
    for entry in entries(kind):
        value = getattr(record, entry.name)
        if entry.facts.flat:
            values |= written(value)
        elif entry.facts.toml:
            values[entry.key] = value
    return values


def keywords(record: Any) -> dict[str, Any]:
    """The options of a record as keyword arguments."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def members(hint: Any) -> list[Any]:
    """The types that a union has without None; a type that is no union alone."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return [hint]
    return [member for member in typing.get_args(hint) if member is not types.NoneType]


def item_type(hint: Any) -> Any:
    """The type of the items of a sequence; None for what is none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    sequence = isinstance(origin, type) and issubclass(origin, Collection)
    return args[0] if sequence and not issubclass(origin, Mapping) else None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of the API is of a type; what a type does not say is taken as it is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, member) for member in args)
    if origin is typing.Literal:
        return value in args
    if hint in (Any, object) or value is None:
        return hint is Any or hint in (object, types.NoneType)
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return hasattr(value, "__index__") and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if (item := item_type(hint)) is not None:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            return False
        sizes = len(args) if origin is tuple and args[-1] is not Ellipsis else None
        items = list(value)
        return sizes in (None, len(items)) and all(fits(one, item) for one in items)
    if origin is Callable:
        return callable(value)
    kind = hint if origin is None else origin
    kind = str | os.PathLike if kind is Path or kind is os.PathLike else kind
    return not isinstance(kind, type | types.UnionType) or isinstance(value, kind)


def _is_written(value: object) -> bool:
    if isinstance(value, tuple | list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, str | dict)


def _choices(hint: Any) -> tuple[tuple[str, ...], bool]:
    """The names that a value, or an item of it, may be; whether it may be nothing else."""
    found: tuple[str, ...] = ()
    alone = True
    for member in members(hint):
        inner = item_type(member)
        kind = member if inner is None else inner
        if typing.get_origin(kind) is typing.Literal:
            found += typing.get_args(kind)
        else:
            alone = False
    return found, alone


def _words(name: str, *, one: bool = False) -> str:
    text = name.replace("_", " ")
    return text.removesuffix("s") if one else text


class _Taker(Protocol[P, R]):
    """Turns the last parameter of a function, a record, into its keywords."""

    @overload
    def __call__(self, function: Callable[[A, R], T], /) -> Callable[Concatenate[A, P], T]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, R], T], /
    ) -> Callable[Concatenate[A, B, P], T]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, C, R], T], /
    ) -> Callable[Concatenate[A, B, C, P], T]: ...


def takes(record: Callable[P, R]) -> _Taker[P, R]:
    """Make a function of some arguments and a record one of these arguments and its options.

    Signature and docstring get every option, with its default and its sentence.
    """
    cls: Any = record

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        *own, last = inspect.signature(function).parameters.values()
        names = [parameter.name for parameter in own]
        known = {entry.name: entry for entry in entries(cls)}

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            positional = {name: given.pop(name) for name in names if name in given}
            for name in given:
                if name not in known:
                    near = nearest(name, known)
                    hint = f"; did you mean {near!r}?" if near else ""
                    raise TypeError(f"{function.__name__}() has no option {name!r}{hint}")
            if len(args) > len(own):
                raise TypeError(
                    f"{function.__name__}() takes {len(own)} positional arguments, not {len(args)}:"
                    " options are keywords"
                )
            with contextlib.ExitStack() as shown:
                if "progress" in known:  # a function that this one calls goes on with the same bar
                    given["progress"] = shown.enter_context(shown_progress(given.get("progress")))
                return function(*args, **positional, **{last.name: cls(**given)})

        types_ = {field.name: field.type for field in dataclasses.fields(cls)}
        listed = [
            inspect.Parameter(
                entry.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=entry.default,
                annotation=types_[entry.name],
            )
            for entry in known.values()
        ]
        signature = inspect.signature(function)
        call.__signature__ = signature.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
        call.__doc__ = _documented(function.__doc__, known.values())
        return call

    return typing.cast("_Taker[P, R]", decorate)


def _documented(doc: str | None, known: Collection[OptionEntry]) -> str | None:
    """A docstring with the options at the end of its arguments."""
    if not doc:
        return doc
    lines = []
    for entry in known:
        facts = entry.facts
        what = (
            f"False: {facts.help[:1].lower()}{facts.help[1:]}"
            if entry.default is True
            else facts.help
        )
        sentences = [what, facts.python, f"Default: {facts.shown}." if facts.shown else ""]
        text = " ".join(filter(None, sentences))
        lines += textwrap.wrap(
            f"{entry.name}: {text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
        )
    head, mark, rest = inspect.cleandoc(doc).partition("Args:\n")
    if not mark:
        return "\n".join([head, "", "Args:", *lines])
    arguments, gap, after = rest.partition("\n\n")
    return head + mark + "\n".join([arguments.rstrip("\n"), *lines]) + gap + after
