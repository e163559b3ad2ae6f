"""Codecs: how one kind of value goes into JSON and comes back, checked.

A codec is put together from smaller ones (``record({"id": TEXT, "writes": many(TEXT)})``), so that what is written and
what is read stand in one table and cannot come apart. Whatever is wrong with a document comes out as one
``UnexpectedError`` that knows the path to the place, what was expected there and what was found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeVar

_SHOWN = 60
"""Characters of a wrong value that an error shows."""

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class UnexpectedError(Exception):
    """Some value is not what the schema asks for; the path to it is filled in on the way out."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.path: list[str | int] = []

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in reversed(self.path))
        return f"{''.join(steps).removeprefix('.')}: expected {self.expected}, found {self.found}"


def shown(value: object) -> str:
    """A value for an error message: its ``repr``, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Codec(Generic[T]):
    """Reads one kind of value, and writes it unless JSON takes it as it is."""

    read: Callable[[object], T]
    write: Callable[[T], Any]
    plain: bool = False
    """``write`` returns what it gets, so it need not be called."""


def _itself(value: T) -> T:
    return value


def plain(expected: str, *types: type[T], least: int | None = None) -> Codec[T]:
    """Values that JSON has itself, of these types and not below ``least``."""
    accepted = frozenset(types)  # compared exactly, since a bool is an int in Python but not in JSON

    def read(value: Any) -> T:
        if type(value) not in accepted or (least is not None and value < least):
            raise UnexpectedError(expected, shown(value))
        return value  # type: ignore[no-any-return]

    return Codec(read=read, write=_itself, plain=True)


def choice(choices: type[E]) -> Codec[E]:
    """The members of an enum, written as their values."""
    members = {member.value: member for member in choices}
    expected = f"one of {', '.join(members)}"

    def read(value: object) -> E:
        if type(value) is not str or value not in members:
            raise UnexpectedError(expected, shown(value))
        return members[value]

    return Codec(read=read, write=attrgetter("value"))


def maybe(codec: Codec[T]) -> Codec[T | None]:
    """What ``codec`` takes, or None, which stands for "not known" or "not there"."""
    inner_read, inner_write = codec.read, codec.write
    return Codec(
        read=lambda value: None if value is None else inner_read(value),
        write=lambda value: None if value is None else inner_write(value),
        plain=codec.plain,
    )


def many(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    """A tuple of what ``codec`` takes, written as a list."""
    inner_read, inner_write = codec.read, codec.write

    def read(value: object) -> tuple[T, ...]:
        if type(value) is not list:
            raise UnexpectedError("a list", shown(value))
        items: list[T] = []
        try:
            for item in value:
                items.append(inner_read(item))  # noqa: PERF401 - its length says which item failed
        except UnexpectedError as error:
            error.path.append(len(items))
            raise
        return tuple(items)

    write = list if codec.plain else lambda values: [inner_write(value) for value in values]
    return Codec(read=read, write=write)


_ABSENT = object()


def _refuse_absence(document: Collection[str]) -> NoReturn:
    raise UnexpectedError("a value", f"only {', '.join(document) or 'an empty object'}")


def record(
    build: Callable[..., T],
    required: Mapping[str, Codec[Any]],
    optional: Mapping[str, Codec[Any]] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
    get: Mapping[str, Callable[[T], Any]] | None = None,
) -> Codec[T]:
    """JSON objects.

    Args:
        build: gets what was read, by name.
        required: fields that are always written and must be there to be read.
        optional: fields that may be absent; ``build`` supplies what they are then.
        defaults: values at which an optional field is not written; one without a default here always is.
        get: how to get a field of the record that is no attribute of its own name.
    """
    getters = {key: (get or {}).get(key, attrgetter(key)) for key in (*required, *(optional or {}))}
    defaults = defaults or {}
    readers = [(key, codec.read, key in required) for key, codec in (*required.items(), *(optional or {}).items())]
    always = [(key, getters[key], None if codec.plain else codec.write) for key, codec in required.items()]
    otherwise = [
        (key, getters[key], codec.write, defaults.get(key, _ABSENT)) for key, codec in (optional or {}).items()
    ]

    def read(value: object) -> T:
        if type(value) is not dict:
            raise UnexpectedError("an object", shown(value))
        found: dict[str, Any] = {}
        key = ""
        try:
            for key, read_field, needed in readers:
                if key in value:
                    found[key] = read_field(value[key])
                elif needed:
                    _refuse_absence(value)
        except UnexpectedError as error:
            error.path.append(key)
            raise
        return build(**found)

    def write(record: T) -> dict[str, Any]:
        document = {
            key: getter(record) if write_field is None else write_field(getter(record))
            for key, getter, write_field in always
        }
        for key, getter, write_field, default in otherwise:
            value = getter(record)
            if value != default:
                document[key] = write_field(value)
        return document

    return Codec(read=read, write=write)


TEXT = plain("a string", str)
FLAG = plain("true or false", bool)
COUNT = plain("an integer from 0 on", int, least=0)
