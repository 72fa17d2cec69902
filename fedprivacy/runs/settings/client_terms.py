"""Terms of a client's own: a privacy budget, a noise multiplier or a sampling rate that is not the run's.

A table has a line for each client that has some; what it leaves open is as the run has it. It is a CSV file, or stands
in the setting itself, as JSON: `{"client-07": {"epsilon": 1.0}}`. Different owners want different protection, and
whoever wants less need not add the noise of the others (*personalised privacy*: Jorgensen, Yu, Cormode 2015; Boenisch,
Mühl, Dziedzic et al. 2023).

Terms are the server's: what it asks of a client and charges it. A deployed client holds every grant against its own
budget and the least noise that it takes, and no table changes those.

Delta is the run's and the same for all: epsilons at different deltas could not be compared, and every figure does.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from math import inf
from pathlib import Path

from fedprivacy._support.settings import ConfigError, Value, fields_of, key_of, not_allowed, parse, setting
from fedprivacy.participation.timing import names_trace, trace_number
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.wording import count_text

EPSILONS = (5e-324, inf)
"""Smallest and largest budget, of a client as of a run; the smallest is the smallest positive number."""

NOISE_MULTIPLIERS = (0.05, 1e4)
SAMPLING_RATES = (1e-9, 1.0)

_NAMED = 5
"""Clients that one line of an error names."""


@dataclass(frozen=True, slots=True)
class Terms:
    """One client's own terms; None: those of the run."""

    epsilon: float | None = setting("Its budget over all runs on its shard.", None, bounds=EPSILONS)
    noise_multiplier: float | None = setting("Sigma of its local steps.", None, bounds=NOISE_MULTIPLIERS)
    sampling_rate: float | None = setting("q of its local steps.", None, bounds=SAMPLING_RATES)

    def budget(self, usual: PrivacyBudget) -> PrivacyBudget:
        """Its budget, where the run's is the usual one."""
        return usual if self.epsilon is None else replace(usual, epsilon=self.epsilon)

    @property
    def settings(self) -> dict[str, Value]:
        """Its own, as a run of this client alone would be given them."""
        return {key: value for key, field in _FIELDS.items() if (value := getattr(self, field.name)) is not None}

    @property
    def asks_for_noise(self) -> bool:
        """Tell whether this client needs noise of its own where the run leaves noise open."""
        return self.noise_multiplier is None and self != _THE_RUNS


_THE_RUNS = Terms()
"""Terms of a client that has none of its own."""

COLUMNS = ("client", *(each.name for each in fields(Terms)))
"""Columns of a table."""

TABLE_FORMS = f"FILE.csv with the column client and any of {', '.join(COLUMNS[1:])}; or the same as JSON"

_FIELDS = fields_of(Terms)

_Cells = tuple[tuple[str, Value | None], ...]
_Line = tuple[str, str, _Cells]
"""A line: its place in the table, the client that it names, and its cells by hyphenated key."""


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """The clients that have terms of their own."""

    by_client: Mapping[str, Terms] = field(default_factory=dict, repr=False)
    places: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # where each is named, in words

    def __bool__(self) -> bool:
        return bool(self.by_client)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self.by_client

    def of(self, client_id: str) -> Terms:
        """A client's own."""
        return self.by_client.get(client_id, _THE_RUNS)

    def place(self, client_id: str) -> str:
        """The place of a client's terms in the table, with which an error begins."""
        return f"client-terms: {self.places.get(client_id, 'the table')} ({client_id})"

    @property
    def budgets(self) -> ClientTerms:
        """Budgets alone: what clients have of their own in a run whose one step reads every record."""
        return replace(self, by_client={c: Terms(own.epsilon) for c, own in self.by_client.items()})

    def with_noise(self, noise_multipliers: Mapping[str, float]) -> ClientTerms:
        """The same with sigma as it was found for some of the clients, by client_id."""
        found = {c: replace(self.of(c), noise_multiplier=noise) for c, noise in noise_multipliers.items()}
        return replace(self, by_client={**self.by_client, **found})

    def became(self, used: ClientTerms) -> bool:
        """Tell whether `used` is this table, except for noise that was open here and was found since."""
        return self.by_client.keys() == used.by_client.keys() and all(
            own in {then, replace(then, noise_multiplier=None)}
            for own, then in ((own, used.of(client_id)) for client_id, own in self.by_client.items())
        )

    def unknown(self, client_ids: Collection[str]) -> list[str]:
        """Clients that the table names and that are none of these, in its order."""
        known = set(client_ids)
        return [client_id for client_id in self.by_client if client_id not in known]

    def check_names(self, client_ids: Collection[str]) -> None:
        """Refuse a table that names a client that is none of these: a misspelt limit must not be no limit.

        Raises:
            ConfigError: says where, and what the clients are called.
        """
        unknown, known = self.unknown(client_ids), sorted(client_ids)
        problems = []
        for client_id in unknown[:_NAMED]:
            alike = [name for name in known if trace_number(name) == trace_number(client_id)]
            near = "".join(f" Did you mean {name}?" for name in alike or get_close_matches(client_id, known, 1))
            problems.append(f"{self.place(client_id)}: this run has no such client.{near}")
        if unknown:
            more = f", nor {count_text(len(unknown) - _NAMED, 'other')} of the table" if len(unknown) > _NAMED else ""
            last = f" to {known[-1]}" if len(known) > 1 else ""
            problems[-1] += f" Its clients are {known[0]}{last}{more}; take the line out, or name one of them."
            raise ConfigError(problems)

    def as_csv(self) -> str:
        """The table as a file, whose lines are in the order of the client_ids."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((client_id, *astuple(own)) for client_id, own in sorted(self.by_client.items()))
        return text.getvalue()


def client_terms_of(text: str) -> ClientTerms:
    """The terms that a setting names; an empty text: nobody has any.

    Raises:
        ConfigError: the file cannot be read, or is no such table; or lists every line that names a client again, or a
            value that cannot be.
    """
    if not text:
        return ClientTerms()
    by_client: dict[str, Terms] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for place, client_id, cells in _json_lines(text) if _is_json(text) else _file_lines(text):
        found = f"client-terms: {place}{f' ({client_id})' if client_id else ''}"
        if not client_id:
            problems.append(f"{found} names no client; write its client_id in the column client.")
        elif client_id in by_client:
            problems.append(f"{found} names a client that {places[client_id]} has named; leave one of them.")
        own, wrong = _read_terms(cells)
        problems += [f"{found}: {problem}" for problem in wrong]
        by_client[client_id] = own
        places.setdefault(client_id, place)
    if problems:
        raise ConfigError(problems)
    if not by_client:
        raise ConfigError(f"client-terms is '{text}', which names no client; give it a line, or leave it open.")
    return ClientTerms(by_client, places)


def check_form(text: str) -> None:
    """Refuse what is no table of terms; no file is read. Raises ConfigError: says what is."""
    if _is_json(text):
        client_terms_of(text)
    elif not names_trace(text):
        raise ConfigError(f"client-terms is '{text}'; give {TABLE_FORMS}.")


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


@lru_cache(maxsize=4096)
def _read_terms(cells: _Cells) -> tuple[Terms, tuple[str, ...]]:
    """The terms of a line, and what is wrong with it. Most lines of a long table are alike, so each is read once."""
    given, wrong = parse(_FIELDS, dict(cells))
    wrong |= not_allowed(_FIELDS, given)
    return Terms(**{name: float(value) for name, value in given.items() if name not in wrong}), tuple(wrong.values())


def _file_lines(file: str) -> Iterator[_Line]:
    try:
        text = Path(file).read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a mark
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"client-terms names file '{file}', which cannot be read: {why}; give its path.") from error
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = [(name or "").strip().replace("-", "_") for name in lines.fieldnames or ()]
    lines.fieldnames = columns
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown or "client" not in columns or len(set(columns)) != len(columns) or len(columns) == 1:
        raise ConfigError(
            f"client-terms: the first line of '{file}' is '{','.join(columns)}'; it names client and any of "
            f"{', '.join(COLUMNS[1:])}, each once, with commas."
        )
    for line in lines:
        place = f"line {lines.line_num} of '{file}'"
        if None in line:
            raise ConfigError(f"client-terms: {place} has more cells than the first line; give each column one.")
        own = ((key_of(name), _number(line[name] or "")) for name in columns if name != "client")
        yield place, (line["client"] or "").strip(), tuple(own)


def _json_lines(text: str) -> Iterator[_Line]:
    try:
        table = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"client-terms begins like JSON, and is none ({error}); give {TABLE_FORMS}.") from error
    for client_id, own in table:
        if not isinstance(own, tuple) or any(isinstance(value, list | tuple) for _, value in own):
            example = '{"client-07": {"epsilon": 1.0}}'
            raise ConfigError(f"client-terms: {client_id} has no terms by name; write them like {example}.")
        yield "the table", client_id.strip(), tuple((key_of(name), _plain(value)) for name, value in own)


def _plain(value: Value | None) -> Value | None:
    """A value that is equal to no value of another type: true is no number."""
    return str(value).lower() if isinstance(value, bool) else value


def _number(text: str) -> Value | None:
    """A cell's number; its text, where it is none; None: it is open."""
    try:
        return float(text) if text.strip() else None
    except ValueError:
        return text
