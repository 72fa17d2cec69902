"""Whole runs with user-level noise: what is released, charged and shown, who joins, and what no client can change."""

import json
import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum
from scipy import stats
from torch import nn

from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.server.rounds import OVER
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.user_level_book import BOOK
from fedprivacy.training.user_level import CLIENT_ALLOWANCE
from tests.flower.blobs import BLOBS, Blobs, plan_of
from tests.flower.runs import SAMPLING, answering, run

NOISE = {"user_level_noise_multiplier": 1.0}


def planned(folder, task=None, **settings):
    return plan_of(task or BLOBS, ledger=f"sqlite:///{folder / 'ledger.db'}", **settings)


def charged(folder):
    return [json.loads(line) for line in (folder / BOOK).read_text().splitlines()]


def weights(record):
    return np.concatenate([array.numpy().ravel() for array in record.values()]).astype(np.float64)


class Wide(Blobs):
    """The same with 15,000 parameters: its noise can be read."""

    def model(self):
        model = nn.Linear(2, 5_000)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model


# --- accounts -------------------------------------------------------------------------------------------------------


def test_every_round_is_charged_to_an_account_of_its_own_on_the_disk_before_its_average_is_handed_on(tmp_path):
    """The accounts of records are as without."""
    on_disk, account = [], UserLevelAccount()

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            on_disk.append(len(charged(tmp_path)))
            return super().aggregate_train(server_round, replies)

    done = run(planned(tmp_path, noise_multiplier=1.1, **NOISE), Watching(**SAMPLING), checkpoints=tmp_path)
    plain = run(planned(tmp_path / "plain", noise_multiplier=1.1))
    assert on_disk == [1, 2, 3]
    for number, record in enumerate(done.records, start=1):
        account.record(1.0, 1.0)
        assert record.user_level.epsilon == account.epsilon(1e-5).value
        assert (record.user_level.rounds, record.user_level.delta) == (number, 1e-5)
    assert [record.spent for record in done.records] == [record.spent for record in plain.records]
    lines = [(line["round"], line["sampling_rate"], line["noise_multiplier"]) for line in charged(tmp_path)]
    assert lines == [(number, 1.0, 1.0) for number in (1, 2, 3)]
    assert all(record.user_level is None for record in plain.records)


def test_the_budget_ends_the_run_before_the_round_that_does_not_fit_and_keeps_the_model(tmp_path):
    account = UserLevelAccount()
    account.record(0.5, 2.0, 3)
    budget = account.epsilon(1e-5).value + 1e-6
    settings = {"fraction_train": 0.5, "user_level_noise_multiplier": 2.0, "user_level_epsilon": budget}
    settings["user_level_clipping"] = "adaptive"
    done = run(planned(tmp_path, rounds=9, **settings), checkpoints=tmp_path)
    assert len(done.records) == len(charged(tmp_path)) == 3
    assert len({record.user_level.clipping_norm for record in done.records}) == 3, "it is adapted"
    assert done.result.stopped_because == OVER
    assert done.records[-1].user_level.epsilon <= budget
    assert np.isfinite(weights(done.result.arrays)).all()


# --- what is released -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joining", ["silent", "nobody"])
def test_the_model_moves_by_noise_of_the_promised_deviation_where_no_client_moves_it(joining, tmp_path):
    """Catches: noise forgotten on the real path, or divided by those that joined; a round skipped for want of any."""
    settings = {"clients": 6, "user_level_noise_multiplier": 0.8, "user_level_clipping_norm": 0.3}
    settings["fraction_train"] = 0.5 if joining == "silent" else 1e-6
    plan = planned(tmp_path, Wide(), rounds=1, **settings)

    def unmoved(message, context, reply):
        return Message(RecordDict({**reply.content, "arrays": message.content["arrays"]}), reply_to=message)

    done = run(plan, client=answering(plan, unmoved), checkpoints=tmp_path)
    assert bool(done.records[0].participants) is (joining == "silent")
    deviation = 0.8 * 0.3 * (1 + CLIENT_ALLOWANCE) / (6 * settings["fraction_train"])
    assert stats.kstest(weights(done.result.arrays) / deviation, stats.norm.cdf).pvalue > 1e-4


def test_clients_count_alike_and_are_divided_by_the_expected_cohort(tmp_path):
    """Without noise to speak of: shards of 30 to 33 records would weigh differently, and three of four answer."""
    settings = {"user_level_noise_multiplier": 0.05, "user_level_clipping_norm": 1e-3}
    plan = planned(tmp_path, Wide(), rounds=1, **settings)
    steps = {f"client-{i}": np.float32(10.0 * (i + 1)) * np.eye(4, 15_000, dtype=np.float32)[i] for i in range(4)}

    def pushing(message, context, reply):
        client_id = f"client-{context.node_config['partition-id']}"
        if client_id == "client-3":
            return Message(RecordDict({}), reply_to=message)
        bias, weight = np.split(steps[client_id], [5_000])
        arrays = ArrayRecord({"weight": Array(weight.reshape(5_000, 2)), "bias": Array(bias)})
        return Message(RecordDict({**reply.content, "arrays": arrays}), reply_to=message)

    done = run(plan, client=answering(plan, pushing), checkpoints=tmp_path)
    assert set(done.records[0].failures) == {"client-3"}
    moved = done.result.arrays["bias"].numpy()[:4]
    np.testing.assert_allclose(moved, [2.5e-4, 2.5e-4, 2.5e-4, 0.0], atol=8e-5)  # noise: 1.25e-5


@pytest.mark.exhaustive
def test_who_joins_is_drawn_from_the_server_s_keystream_whatever_python_s_random_is(tmp_path):
    def cohorts(name, python_s, **settings):
        random.seed(python_s)
        plan = planned(tmp_path / name, rounds=8, clients=8, fraction_train=0.5, **NOISE, **settings)
        return [record.participants for record in run(plan, checkpoints=tmp_path / name).records]

    seeded = cohorts("one", 1)
    assert cohorts("two", 2) == seeded and len({len(joined) for joined in seeded}) > 2
    assert cohorts("three", 1, seed=None) != cohorts("four", 1, seed=None)


@pytest.mark.exhaustive
def test_with_secret_noise_a_round_that_is_done_again_is_charged_again(tmp_path):
    """A run that goes on in a seeded simulation: tests/flower/test_every_way.py."""
    plan = planned(tmp_path, rounds=3, out=str(tmp_path), seed=None, **NOISE)

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, observers=[stop], checkpoints=tmp_path)
    run(plan, resume=load_checkpoint(tmp_path), checkpoints=tmp_path)
    assert [line["round"] for line in charged(tmp_path)] == [1, 2, 2, 3]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_does_not_go_with_it_is_refused_before_anybody_is_asked(tmp_path):
    for strategy in (FedMedian(**SAMPLING), Krum(**SAMPLING, num_malicious_nodes=1)):
        with pytest.raises(ConfigError, match=f"the strategy is {type(strategy).__name__}, which compares"):
            run(planned(tmp_path, **NOISE), strategy, checkpoints=tmp_path)
    with pytest.raises(ValueError, match=r"asks 2 of 4 clients.*let its own be 1"):
        run(planned(tmp_path, **NOISE), FedAvg(**SAMPLING, fraction_train=0.5), checkpoints=tmp_path)
    with pytest.raises(ConfigError, match="give PrivateStrategy checkpoints, a folder"):
        run(planned(tmp_path, **NOISE))
    with pytest.raises(ConfigError, match="does not allow one round with user-level-noise"):
        planned(tmp_path, rounds=4, user_level_epsilon=0.1, **NOISE)
    assert not (tmp_path / BOOK).exists()
