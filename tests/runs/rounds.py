"""A run's rounds as `fedprivacy runs export` prints them, and other ones in their place."""

import json
import sqlite3
from contextlib import closing

from fedprivacy.runs.records.folder import read_lines
from fedprivacy.runs.records.store import RECORD


def rounds_of(folder):
    """Read what each finished round of a run's folder says."""
    return [json.loads(line) for line in read_lines(folder)[1:]]


def falsify(folder, rounds):
    """Let the finished rounds of a run's folder say something else."""
    with closing(sqlite3.connect(folder / RECORD)) as connection, connection:
        for each in rounds:
            connection.execute(
                "UPDATE recorded_results SET told = ? WHERE round = ?", (json.dumps(each), each["round"])
            )


def same_results(folder, names=("model.safetensors",)):
    """Read what two runs that are the same have in common: their rounds, and some files."""
    return read_lines(folder), *((folder / name).read_bytes() for name in names)
