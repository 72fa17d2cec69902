"""A run's file: its settings in TOML, so that the run can be repeated, edited and shared.

Each setting stands on a line of its own, under the key that it has on the command line: `flwr run --run-config` takes
the same file. What a file says is checked as strictly as what is typed, and can do no more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from datetime import date, time
from inspect import getdoc
from pathlib import Path
from typing import Any

import tomli_w

from fedprivacy._support.settings import ConfigError, Value, fields_of, is_printable, not_allowed
from fedprivacy.runs.settings.configuration import FIELDS, GROUPS, RunConfig, parse_settings

RUN_FILE = "run.toml"
"""Name of the file in a run's folder."""

LARGEST = 2**24
"""Maximum size of a file, in bytes: enough for a table of a hundred thousand clients' own terms."""

_HEAD = f"""\
# All settings of a run, those of its task and the defaults, too. To repeat the run, maybe after a change:
#   fedprivacy simulate --config {RUN_FILE}
# An option that is typed beside it wins. Relative paths are seen from where the command is typed.
# A ledger that is named here is charged again. On real hosts, 'flwr run --run-config' takes the same file.
"""

_KINDS = {dict: "a table", list: "a list", date: "a date", time: "a time"}


def as_toml(config: RunConfig) -> bytes:
    """Write the file that repeats a run."""
    settings = config.settings_to_repeat()
    parts = [_HEAD]
    for group in GROUPS:
        if own := {key: settings[key] for key in fields_of(group) if key in settings}:
            parts.append(f"# {getdoc(group)}\n{tomli_w.dumps(own)}")
    return "\n".join(parts).encode(errors="backslashreplace")  # a path need not be UTF-8, and must not end the run


def settings_in(file: Path, keys: Collection[str] = tuple(FIELDS)) -> dict[str, Value]:
    """Read the settings that a file gives, by hyphenated key.

    Args:
        file: the file's path.
        keys: the keys that it may give.

    Raises:
        ConfigError: there is no such file, it is no TOML, or it gives a key that there is not, a value of another type
            or one out of range; lists them all, each with the file's name.
    """
    given = _read(file)
    problems = [problem for key, value in given.items() if (problem := _unfit(key, value))]
    if not problems:  # else what is told below could not be printed
        others = [key for key, value in given.items() if value != "" and key in FIELDS and key not in keys]
        problems = [f"this command does not take {', '.join(others)}; leave that out."] if others else []
        settings, wrong = parse_settings(given)
        problems += [*(wrong | not_allowed(FIELDS, settings)).values()]
    if problems:
        raise ConfigError([f"{file}: {line}" for problem in problems for line in problem.splitlines()])
    return given


def _read(file: Path) -> dict[str, Any]:
    why, instead = "", f"name a TOML file with settings, such as the {RUN_FILE} in a run's folder."
    try:
        if file.is_file():  # a device or a pipe may never end
            with file.open("rb") as opened:
                text = opened.read(LARGEST + 1)
            if len(text) <= LARGEST:
                return tomllib.loads(text.decode())
            why = f"is larger than {LARGEST:,} bytes"
        elif file.is_dir():
            why = "is a folder"
            instead = f"name {file / RUN_FILE}, which is in it." if (file / RUN_FILE).is_file() else instead
        else:
            why = "is no regular file" if file.exists() else "is not there"
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeError:
        why = "is no text"
    except (ValueError, RecursionError) as error:
        why = f"is no TOML: {error}" if isinstance(error, tomllib.TOMLDecodeError) else "is no TOML"
        instead = "write each setting on a line, such as rounds = 20."
    raise ConfigError(f"config is '{file}', which {why}; {instead}")


def _unfit(key: str, value: object) -> str:
    """Say what keeps a line from being a setting of any kind; empty: nothing."""
    if not key.isprintable():
        return f"the key {key!a} is not a setting; take it out."
    if isinstance(value, Mapping | list | date | time):
        kind = next(words for kind, words in _KINDS.items() if isinstance(value, kind))
        return f"{key} is {kind}; give each setting one value, as in rounds = 20, without a [table] above it."
    if isinstance(value, str) and not is_printable(value):
        return f"{key} holds characters that cannot be printed; take them out."
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{key} is a whole number of more than 64 bits; give a smaller one."
    return ""
