"""No value of a record gets into the server's log, in any form; the client's own log names its failure.

On real hosts: `tests/deploy/test_wheel.py`.
"""

import json
import re

import pytest

from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import run

PRIVATE = "4711.25"
BEGINS = re.compile(r"^\d{4}-\S+Z [A-Z]+ \[([\w.]+)] ", flags=re.MULTILINE)


def events_in(text, form):
    """Events of a log, in order: the logger and all of its text."""
    if form is LogFormat.JSON:
        return [(json.loads(line)["logger"], line) for line in text.splitlines()]
    starts = [(found.start(), found[1]) for found in BEGINS.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    assert starts[0][0] == 0
    return [(logger, text[start:end]) for (start, logger), end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("form", LogFormat)
def test_a_client_s_failure_is_in_its_own_log_and_its_values_are_not_in_the_server_s(
    form, tmp_path, capfd, monkeypatch
):
    train = DPSGD.train

    def failing(self, engine, shard, **given):
        if len(shard) == 31:
            raise ValueError(f"the age {PRIVATE} is no number")
        return train(self, engine, shard, **given)

    monkeypatch.setattr(DPSGD, "train", failing)
    plan = plan_of(BLOBS, epsilon=3.0, rounds=2, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    LogSettings(form).begin()
    done = run(plan)
    events = events_in(capfd.readouterr().err, form)
    assert [record.failures for record in done.records] == [{"client-1": "client-failed"}] * 2
    own = [text for logger, text in events if logger == "fedprivacy.client"]
    others = [text for logger, text in events if logger != "fedprivacy.client"]
    failures = [text for text in own if "This client sends no update (client-failed)." in text]
    assert len(failures) == 2 and all(f"the age {PRIVATE} is no number" in text for text in failures)
    rounds = [text for text in others if "Round 2: accuracy" in text]
    about = [f'"run": "{done.run_id}"', '"round": 2'] if form is LogFormat.JSON else [f"run={done.run_id}", "round=2"]
    assert len(rounds) == 1 and all(each in text for text in (rounds[0], failures[1]) for each in about)
    assert any("No update in round 2 from client-1 (client-failed)." in text for text in others)
    assert not any(PRIVATE in text for text in others)
