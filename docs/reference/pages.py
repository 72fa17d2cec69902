"""Writes the reference from the program itself: settings, commands, refusals, the ledger's tables, the wire.

python docs/reference/pages.py    # after a change of any of them: tests/test_reference.py says when
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import typer
from sqlalchemy import Table

import fedprivacy.values.events as event_values
from fedprivacy._support.settings import KIND_WORDS, Value, key_of, kind_of, range_words
from fedprivacy.accounting import pld, rdp
from fedprivacy.audit import findings_page
from fedprivacy.commands.app import app
from fedprivacy.flower.server.checkpoint import CHECKPOINT
from fedprivacy.flower.wire.messages import (
    VERSION,
    Enrolment,
    EnrolmentRequest,
    Grant,
    QuestionGrant,
    Receipt,
    Refusal,
    WireMessage,
)
from fedprivacy.ledger.schema import metadata
from fedprivacy.runs.records import folder
from fedprivacy.runs.records.store import RECORD
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.runs.settings.configuration import CONFIG, FIELDS, GROUPS, LEDGER, resolve
from fedprivacy.runs.settings.run_file import RUN_FILE
from fedprivacy.runs.user_level_book import BOOK
from fedprivacy.server.app import ANSWERS
from fedprivacy.simulation.profile import TABLE, TRACE
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS
from fedprivacy.training.machine import MACHINE
from fedprivacy.values.events import (
    MECHANISMS,
    FixedSizeSampledGaussian,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
    as_fields,
)
from fedprivacy.values.spent import REASONS

EVENTS = (
    PoissonSampledGaussian(0.01, 1.1),
    PoissonSampledLaplace(0.01, 2.0),
    RandomizedResponse(4, 0.8),
    FixedSizeSampledGaussian(100, 10_000, 1.1),
    TruncatedPoissonSampledGaussian(0.01, 1.1, records=10_000, largest_sample=200),
)
"""An example of every event that may have been executed."""

Row = tuple[str, str]
"""Names of an option, and its words."""

FOLDER = Path(__file__).parent.resolve()

_MESSAGES: tuple[type[WireMessage], ...] = (EnrolmentRequest, Enrolment, Grant, QuestionGrant, Receipt, Refusal)

_OBEYED_BY_CLIENTS = {*(field.name for field in dataclasses.fields(Grant)), *ALGORITHM_SETTINGS} | {
    *("local_steps", "batch_size", "client_terms"),  # granted as steps, sampling_rate and noise_multiplier
    *("learning_rate_schedule", "fine_tuning_rounds"),  # granted as a round's learning_rate and algorithm
    "proximal_mu",  # beside the grant, in the configuration of Flower's FedProx
}

_MADE = "<!-- Made by docs/reference/pages.py: change the program, not this page. -->"


def pages() -> dict[str, str]:
    """Every page that is made from the program, by its file's name."""
    made = {
        "settings.md": settings(),
        "commands.md": commands(),
        "refusals.md": refusals(),
        "run-folder.md": run_folder(),
        "ledger-tables.md": ledger_tables(),
        "wire.md": wire(),
        "events.md": events(),
    }
    return {name: f"{_MADE}\n\n{text}\n" for name, text in made.items()}


def settings() -> str:
    """Every setting of a run, group by group."""
    digits = resolve({"task": "digits"}).public()
    obeyed = ", ".join(f"`{key}`" for key, field in FIELDS.items() if field.name in _OBEYED_BY_CLIENTS)
    parts = [
        f"""# Settings of a run

The {len(FIELDS)} settings of a run. Each is written the same way everywhere: as an option (`--local-steps 5`), in a
[run file](../how-to/runs.md) and in Flower's run config (`local-steps = 5`), and with underscores in Python
(`fp.simulate("digits", local_steps=5)`). A setting that you leave open is decided by the task's recipe, then by
its default.

Each client obeys {obeyed}. These travel to it in [the grant](wire.md#grant), and the client refuses what its owner
does not allow. The server obeys all others."""
    ]
    for group in GROUPS:
        fields = dataclasses.fields(group)
        rows = [_setting(field, digits[key_of(field.name)]) for field in fields if key_of(field.name) in FIELDS]
        parts += [f"## {group.question}", _table(["setting", "what", "values", "default"], rows)]
    return "\n\n".join(parts)


def _setting(field: dataclasses.Field[Any], in_digits: Value | None) -> Sequence[str]:
    default = f"the task's own; digits: `{in_digits}`" if field.default is dataclasses.MISSING else field.default
    words = str(field.metadata["help"])
    if choices := field.metadata["choices"]:  # another column lists them
        words = words.replace(f": {', '.join(filter(None, choices))}", "", 1)
    return (
        f"`{key_of(field.name)}`",
        words,
        _values(field),
        "open" if default in ("", None) else str(default),
    )


def _values(field: dataclasses.Field[Any]) -> str:
    choices, (low, high) = field.metadata["choices"], field.metadata["bounds"]
    if choices is not None:
        source = ", or `path/to/file.py:name`" if field.metadata["or_source"] else ""
        return ", ".join(f"`{choice}`" for choice in choices if choice) + source
    kind = kind_of(field)
    if kind not in ("int", "float") or (low, high) == (-float("inf"), float("inf")):
        return KIND_WORDS[kind]
    return f"{KIND_WORDS[kind]} {range_words(low, high, low)}"


def commands() -> str:
    """Every command, with its options."""
    every = [*_parts("fedprivacy", typer.main.get_command(app))]
    times = Counter(_parameter(each) for _, part in every for each in _own(part))
    shared = {row for row, number in times.items() if number >= _SHARED_BY}
    parts = [
        """# Commands

Every command with its options, as `--help` shows them. Settings are explained [on their own page](settings.md), and
so are [exit codes](exit-codes.md). These options mean the same wherever a command names them under *also*:""",
        _table(["option", "what"], sorted(shared)),
    ]
    for name, part in every:
        parts += _command(name, part, shared)
    return "\n\n".join(parts)


_SHARED_BY = 2
"""Minimum number of commands that share an option which is explained once."""


def _parts(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all commands below it, with their names."""
    yield name, command
    for word, each in getattr(command, "commands", {}).items():
        yield from _parts(f"{name} {word}", each)


def _own(command: click.Command) -> list[click.Parameter]:
    """The parameters of a command that are no settings."""
    return [each for each in command.params if not _is_setting(each) and getattr(each, "help", None)]


def _command(name: str, command: click.Command, shared: Collection[Row]) -> Iterator[str]:
    yield f"## `{name}`"
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    if usage not in ("[OPTIONS]", "[OPTIONS] COMMAND [ARGS]..."):
        yield f"`{name} {usage}`"
    yield _paragraphs(command.help or "")
    rows = [_parameter(each) for each in _own(command)]
    special = [row for row in rows if row not in shared]
    if len(special) == 1:
        yield ": ".join(map(_cell, special[0]))
    elif special:
        yield _table(["option", "what"], special)
    if also := [names for names, words in rows if (names, words) in shared]:
        yield f"Also {', '.join(also)}."
    taken = [str(each.opts[0]) for each in command.params if _is_setting(each)]
    left = [option for key in FIELDS if (option := f"--{key}") not in taken]
    if taken and len(left) < len(taken):
        yield f"Takes every [setting](settings.md) but {_listed(left)}."
    elif taken:
        yield f"Settings: {_listed(taken)}."


def _listed(options: Sequence[str]) -> str:
    return ", ".join(f"`{option}`" for option in options)


def _is_setting(parameter: click.Parameter) -> bool:
    """Tell whether an option is a setting, in the setting's own words."""
    key = key_of(str(parameter.name))
    return key in FIELDS and str(FIELDS[key].metadata["help"]) in _unescaped(str(getattr(parameter, "help", "")))


def _parameter(parameter: click.Parameter) -> Row:
    named = [str(parameter.name).upper()] if parameter.param_type_name == "argument" else parameter.opts
    return ", ".join(f"`{name}`" for name in (*named, *parameter.secondary_opts)), str(getattr(parameter, "help", ""))


def refusals() -> str:
    """Every reason why an update was not used."""
    rows = [
        (f"`{code}`", each.words, "returned" if each.refused else "stands", each.remedy)
        for code, each in REASONS.items()
    ]
    return "\n\n".join(
        [
            """# Refusals and failures

These codes say why a client's update is not in the model. They stand in a run's report, on the dashboard, in the
ledger and in logs. A client sends a code and never a text; a detail may follow after a colon. The charge of a client
that refused before it read a record is returned. Any other charge stands: a client that did not answer may have
trained all the same.""",
            _table(["code", "what it means", "its charge", "what to do"], rows),
        ]
    )


_FILES = {
    RUN_FILE: ("the settings that repeat the run", "always"),
    CONFIG: ("every setting as it was used, the noise that was found, the run's name in its ledger", "always"),
    RECORD: (
        "its rounds, and an index of them for pages, see below; beside it, while the run goes on, `-wal` and `-shm`",
        "always",
    ),
    CHECKPOINT: ("all that a stopped run needs to go on", "once a round has ended"),
    folder.MODEL: ("the model's parameters by name", "at the end"),
    folder.REPORT: ("the report: one page, which loads nothing from elsewhere", "at the end"),
    folder.FIGURE: ("accuracy and privacy loss by round", "at the end"),
    folder.CLIENT_MODELS: ("simulated clients' own models, as flat vectors by client", "with personal models"),
    folder.CLIENT_TERMS: ("terms of single clients, with the noise that was found for them", "with client-terms"),
    folder.ERROR: ("the error that ended the run, with its place in the code", "if it failed"),
    LEDGER: (
        "the run's own ledger; beside it, while a process has it open, `-wal` and `-shm`",
        "in a simulation, unless ledger names another",
    ),
    MACHINE: ("what computed: processor, threads, versions", "in a simulation"),
    WITNESS: ("the newest signed head of the ledger", "with signing-key"),
    BOOK: ("the account of clients as a whole", "with user-level noise"),
    findings_page.PAGE: ("the audit's page", "after fedprivacy audit --run"),
    ANSWERS: ("answers to questions", "in a run that asks, instead of rounds"),
    TABLE: ("where the time went", "with --profile"),
    TRACE: ("the same as a trace for a viewer", "with --profile"),
}


def run_folder() -> str:
    """Every file of a run's folder, and what a line of its rounds holds."""
    rows = [(f"`{name}`", words, when) for name, (words, when) in _FILES.items()]
    return "\n\n".join(
        [
            """# A run's folder

A run writes one folder, `runs/TASK-N` unless `out` names another. Rounds and model do not depend on the time of day:
the same seed writes the same bytes on the same machine. [`fp.open_run`](../how-to/in-python.md) reads a folder; a
program in another language can read the JSON itself. A later version may add keys; none changes its meaning without a
line in [the changelog](../../CHANGELOG.md).""",
            _table(["file", "holds", "written"], rows),
            f"""## A round

`fedprivacy runs export RUN` prints each round as a line of JSON, the state before the first round first. That is what
`recorded_results` of `{RECORD}` holds.""",
            _table(["key", "what"], _LINE),
            f"""## The tables of `{RECORD}`

Its tables hold the run, its clients, its rounds, and epsilons and failures by client, for the dashboard's pages; a
ledger elsewhere has the same tables, without `recorded_results`. Any client of SQLite reads them, and
`fedprivacy/runs/records/store/schema.py` says what each column means. Another version may have other tables: programs
that must last should read `fedprivacy runs export`.""",
        ]
    )


_LINE = [
    ("`round`", "counted from 1"),
    ("`metrics`", "of the global model, on the server's public records: a number for each name"),
    (
        "`clients`",
        "account of each client that has changed: `client_id`, `epsilon`, `delta`, `budget_epsilon` (null: "
        "none), `rounds`, `steps`, `steps_left`, `sampling_rate`, `noise_multiplier`",
    ),
    (
        f"`{folder.SINCE}`",
        "an earlier round: clients that the line does not name stand as after that one; missing: "
        "the line names every client",
    ),
    ("`participants`", "clients whose update was averaged"),
    ("`failures`", "clients whose update was asked for and not used, each with [its code](refusals.md)"),
    ("`exhausted`", "clients with nothing left of their budget"),
    ("`unreconciled`", "clients with a charge that no receipt has confirmed; it counts"),
    ("`max_epsilon`", "the largest privacy loss of a client"),
    ("`privacy`", "false: a run without clipping and noise"),
    ("`most_charged`", "charges to the client that has spent most: mechanism, numbers, and how often"),
]


def ledger_tables() -> str:
    """Every table of the ledger."""
    parts = [
        """# The ledger's tables

[The ledger](../how-to/ledger.md) is the journal: every other table holds the state after all of its entries, in a
form for queries. `fedprivacy ledger verify` replays the journal and compares. Read with any client of SQLite or
PostgreSQL; write with `fedprivacy` alone, because a changed row no longer agrees with the journal. Another version may
have other tables, and refuses these; programs that must last should read `fedprivacy ledger export`."""
    ]
    for table in metadata.sorted_tables:
        parts += [f"## `{table.name}`", _table(["column", "type", "what"], [*_columns(table)])]
    return "\n\n".join(parts)


def _columns(table: Table) -> Iterator[Sequence[str]]:
    for column in table.columns:
        told = [column.comment or ""]
        told += ["key"] * column.primary_key
        told += sorted(f"as in `{key.target_fullname}`" for key in column.foreign_keys)
        told += ["may be null"] * (bool(column.nullable) and "null" not in told[0])
        kind = type(column.type).__name__
        yield f"`{column.name}`", kind.lower(), "; ".join(text for text in told if text)


def wire() -> str:
    """Every record that crosses between server and client, beside Flower's arrays."""
    parts = [
        f"""# The wire

Besides the model's arrays, server and clients exchange records of Flower messages (`ConfigRecord`), all of version
{VERSION}. A record of another version, with a field too many or too few, or with a value of another type is
refused, so server and clients are [upgraded together](../how-to/operate.md#upgrade). Nothing else leaves a client.
See [what each field of a grant does](../explanation/server-fields.md) and [what an adversary
sees](../explanation/threat-model.md)."""
    ]
    granted = _attributes(Grant)
    for message in _MESSAGES:
        told = _attributes(message)
        names = [each.name for each in dataclasses.fields(message) if message is not Grant]
        shared = [name for name in names if told.get(name, "") in (granted.get(name), _AS_GRANTED)]
        rows = [
            (f"`{each.name}`", str(each.type).rsplit(".", maxsplit=1)[-1], told.get(each.name, ""))
            for each in dataclasses.fields(message)
            if each.name not in shared
        ]
        parts += [f"## {_spaced(message.__name__)}", f"`{message.name}`. {_summary(message)}"]
        if shared:
            parts.append(f"As in [the grant](#grant): {_listed(shared)}. Its other fields:")
        parts.append(_table(["field", "type", "what"], rows))
    return "\n\n".join(parts)


_AS_GRANTED = "as in [the grant](#grant)."


def events() -> str:
    """Every event that may have been executed, and how stable events are."""
    _, first, stable, _ = (inspect.getdoc(event_values) or "").split("\n\n")
    parts = [
        f"""# Events

{_paragraphs(first)} [How epsilon follows from
them](../explanation/accounting.md).

## Stability

{_paragraphs(stable)}

## As text

A guard's log, `fedprivacy epsilon --history` and the state of an accountant hold an event as JSON. A history is a list
of them, each with its number of `steps`. The last columns are what a thousand steps of the example cost, by each
accountant, at delta 1e-5; the smaller figure is reported.""",
        _table(["event", "example", "epsilon by PLD", "epsilon by RDP"], [*map(_example, EVENTS)]),
    ]
    assert {type(event) for event in EVENTS} == set(MECHANISMS.values())
    first_told = _attributes(type(EVENTS[0]))
    for event in EVENTS:
        told = _attributes(type(event))
        alike = [] if event is EVENTS[0] else [name for name, words in told.items() if words == first_told.get(name)]
        rows = [(f"`{name}`", words) for name, words in told.items() if name not in alike]
        what, _, _ = (inspect.getdoc(event) or "").partition("\n\nAttributes:")
        parts += [f"## `{type(event).__name__}`", _paragraphs(what), _table(["parameter", "what"], rows)]
        if alike:
            parts.append(f"As in `{type(EVENTS[0]).__name__}`: {_listed(alike)}.")
    return "\n\n".join(parts)


def _example(event: Any) -> Sequence[str]:
    history = {event: 1000}
    bounds = (accountant.epsilon(history, 1e-5) for accountant in (pld, rdp))
    return (
        f"`{type(event).__name__}`",
        f"`{json.dumps(as_fields(event))}`",
        *("none" if math.isinf(bound) else f"{bound:.3g}" for bound in bounds),
    )


def _attributes(message: type) -> Mapping[str, str]:
    """The words about each field in the docstrings of a class and of those that it builds on."""
    told: dict[str, str] = {}
    for each in reversed(message.__mro__):
        _, _, listed = (inspect.getdoc(each) or "").partition("Attributes:\n")
        for names, words in re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE):
            told |= dict.fromkeys(names.split(", "), _linked(" ".join(words.split())))
    return told


def _summary(message: type) -> str:
    paragraphs, _, _ = (inspect.getdoc(message) or "").partition("\n\n")
    return _linked(" ".join(paragraphs.split()))


def _linked(words: str) -> str:
    return words.replace("as in `Grant`", "as in [the grant](#grant)")


def _spaced(name: str) -> str:
    first, *others = re.findall(r"[A-Z][a-z]*", name)
    return " ".join([first, *(word.lower() for word in others)])


def _paragraphs(text: str) -> str:
    parts = re.split(r"\n\s*\n", text.replace("\f", ""))
    return "\n\n".join(f"```pycon\n{part}\n```" if part[:4] == ">>> " else " ".join(part.split()) for part in parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _unescaped(text: str) -> str:
    """Help without the backslashes that keep rich from reading brackets as styles."""
    return text.replace("\\[", "[")


def _cell(text: str) -> str:
    return " ".join(_unescaped(text).split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
