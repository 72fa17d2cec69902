"""No value of a record gets into the server's log; the client's own log names its failure.

On real hosts: `tests/deploy/test_wheel.py`.
"""

import json

from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import run

PRIVATE = "the age 4711.25 is no number"


def test_a_client_s_failure_is_in_its_own_log_and_its_values_are_not_in_the_server_s(tmp_path, capfd, monkeypatch):
    train = DPSGD.train

    def failing(self, engine, shard, **given):
        if len(shard) == 31:
            raise ValueError(PRIVATE)
        return train(self, engine, shard, **given)

    monkeypatch.setattr(DPSGD, "train", failing)
    plan = plan_of(BLOBS, epsilon=3.0, rounds=2, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    LogSettings(LogFormat.JSON).begin()
    done = run(plan)
    assert [record.failures for record in done.records] == [{"client-1": "client-failed"}] * 2
    lines = capfd.readouterr().err.splitlines()
    own = [line for line in lines if json.loads(line)["logger"] == "fedprivacy.client"]
    others = [line for line in lines if line not in own]
    failures = [line for line in own if "This client sends no update (client-failed)." in line]
    assert len(failures) == 2 and all(PRIVATE in line for line in failures)
    (finished,) = [line for line in others if "Round 2: accuracy" in line]
    for line in (finished, failures[1]):
        assert {"run": done.run_id, "round": 2}.items() <= json.loads(line).items()
    assert any("No update in round 2 from client-1 (client-failed)." in line for line in others)
    assert not any("4711" in line for line in others)
