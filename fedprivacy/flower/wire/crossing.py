"""Records as they cross: flat, typed, versioned, strictly parsed.

Each travels as one Flower `ConfigRecord`. A record with a missing, unknown or ill-typed field, or another version, is
refused as a whole.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass
from functools import cache
from typing import Self, cast, get_type_hints

from flwr.app import ConfigRecord

VERSION = 4


class MessageError(ValueError):
    """A record on the wire that is not what it should be."""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A flat dataclass of scalars that travels as a ConfigRecord."""

    def to_record(self) -> ConfigRecord:
        """The record to put in a message."""
        record = ConfigRecord({"version": VERSION})
        for name, value in dataclasses.asdict(self).items():
            record[name] = str(value) if isinstance(value, enum.Enum) else value
        return record

    @classmethod
    def from_record(cls, record: ConfigRecord) -> Self:
        """Parse strictly.

        Raises:
            MessageError: another version, a missing or unknown field, a wrong type or an impossible value.
        """
        fields = _kinds(cast(type, cls))
        values = dict(record)
        if values.pop("version", None) != VERSION:
            raise MessageError(f"{cls.__name__} is not of version {VERSION}; update server and clients together.")
        if values.keys() != fields.keys():
            lacking, more = sorted(fields.keys() - values.keys()), len(values.keys() - fields.keys())
            raise MessageError(f"{cls.__name__} lacks {', '.join(lacking) or 'nothing'} and has {more} unknown fields.")
        try:
            return cls(**{name: _parsed(values[name], kind) for name, kind in fields.items()})
        except ValueError as error:
            raise MessageError(f"{cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class SignedMessage(WireMessage):
    """A wire record with a field `signature`, in hexadecimal; empty in a simulation."""

    def signed_bytes(self) -> bytes:
        """What the signature covers: every other field, by name."""
        fields = dict(self.to_record())
        del fields["signature"]
        return json.dumps(fields, sort_keys=True).encode()


@cache
def _kinds(record: type) -> dict[str, type]:
    """The type of every field of a wire record's class."""
    return get_type_hints(record)


def _parsed(value: object, kind: type) -> object:
    """The value as a field of type `kind`; nothing is converted but a string into its enum."""
    crosses = str if issubclass(kind, enum.Enum) else kind
    if type(value) is not crosses:
        raise ValueError(f"a value is a {type(value).__name__}; expected {crosses.__name__}.")
    return value if crosses is kind else kind(value)
