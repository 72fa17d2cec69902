"""Whole runs on the in-process engine: what is charged, who takes part, what is dropped, how a run ends."""

import re
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import cycle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.flower import (
    BudgetSpentError,
    InProcessGrid,
    PrivateStrategy,
    RoundFailedError,
    TooFewClientsError,
    private_client,
)
from fedprivacy.flower.client import release
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.server.wrapped import EligibleGrid
from fedprivacy.flower.wire.messages import GRANT, RECEIPT, Grant, Receipt, RefusalCode
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from tests.flower.blobs import BLOBS, Blobs, PrivateSizes, plan_of
from tests.flower.runs import SAMPLING, Noting, answering, history_of, run, tampered


@pytest.mark.exhaustive
def test_the_average_of_the_global_models_is_evaluated_and_kept_and_no_client_receives_it():
    def weights(name, **settings):
        """Of the model that was evaluated in each round, and of the one that was kept."""
        plan, evaluated = plan_of(Blobs(), epsilon=50.0, rounds=5, ledger=f"sqlite:///{name}.db", **settings), []
        evaluate = plan.task.evaluate
        plan.task.evaluate = lambda model: evaluated.append(model.weight.detach().clone()) or evaluate(model)
        start = ArrayRecord({"weight": Array(np.ones((2, 2), np.float32)), "bias": Array(np.ones(2, np.float32))})
        done = run(plan, FedAdam(**SAMPLING), initial_arrays=start)
        return evaluated[-6:], done.result.arrays.to_torch_state_dict()["weight"]

    (plain, _), (averaged, kept) = weights("plain"), weights("averaged", ema_decay=0.25)
    expected = plain[0]
    assert torch.equal(averaged[0], expected)
    for share, model, average in zip((1 / 10, 2 / 11, 0.25, 0.25, 0.25), plain[1:], averaged[1:], strict=True):
        expected = share * expected + (1 - share) * model
        torch.testing.assert_close(average, expected, rtol=1e-5, atol=0.0)
    assert torch.equal(kept, averaged[-1])
    assert not torch.allclose(plain[-1], averaged[-1], rtol=1e-3)


def test_epsilon_composes_over_rounds_and_never_passes_the_budget(ledger_url):
    plan = plan_of(BLOBS, epsilon=3.0, rounds=5, ledger=ledger_url)
    records = run(plan).records
    for record in records:
        expected = pld.epsilon({plan.event(): 2 * record.round}, 1e-3)
        assert record.max_epsilon == pytest.approx(expected)
    assert 2.99 < records[-1].max_epsilon <= 3.0


def test_an_adapted_clipping_norm_is_kept_by_the_server_from_round_to_round(tmp_path):
    plan, norms = plan_of(BLOBS, clients=1, rounds=4, noise_multiplier=2.0, clipping="adaptive"), []

    def listen(message, context, reply):
        norms.append((message.content[GRANT]["clipping_norm"], reply.content[RECEIPT]["clipping_norm"]))
        return reply

    run(plan, client=answering(plan, listen), checkpoints=tmp_path)
    began, ended = zip(*norms, strict=True)
    assert began == (1.0, *ended[:-1]) and len({*ended}) > 2
    assert load_checkpoint(tmp_path).clipping_norms == {"client-0": ended[-1]}


def test_private_shard_sizes_never_leave(ledger_url):
    plan, sent, grants = plan_of(PrivateSizes(), rounds=2, ledger=ledger_url), [], []
    honest, app = private_client(plan.task, plan.config), ClientApp()

    def listen(message, context):
        grants.extend(Grant.from_record(record) for name, record in message.content.items() if name == GRANT)
        reply = honest(message, context)
        sent.append(RecordDict(dict(reply.content)))
        return reply

    app.query("enrol")(listen)
    app.train()(listen)
    run(plan, client=app)
    assert {grant.expected_batch_size for grant in grants} == {12.5}
    assert plan.event().relation == "add-or-remove-one"
    values = [value for content in sent for record in content.config_records.values() for value in record.values()]
    assert len(sent) == 12 and not {30, 31, 32, 33} & set(values)
    assert not any(content.metric_records for content in sent)


def test_when_all_are_exhausted_the_run_ends_well_with_the_model_kept(ledger_url):
    plan = plan_of(BLOBS, epsilon=3.0, noise_multiplier=1.5, rounds=500, local_steps=1, ledger=ledger_url)
    done = run(plan)
    whole = FILTERS[plan.config.allowance().filter](plan.config.budget).quota({}, plan.event())
    assert done.result.stopped_because == "no client has budget left"
    assert 1 < len(done.records) == whole < 500
    assert done.records[-1].max_epsilon <= 3.0 < pld.epsilon({plan.event(): whole + 1}, 1e-3)
    assert done.result.arrays is not None
    with pytest.raises(BudgetSpentError, match=r"client-0 has spent .* of 3 at delta 1e-3, .* nor for 3 other"):
        run(plan)
    assert history_of(ledger_url, "client-0") == {plan.event(): whole}


def with_array(reply, name, array):
    reply.content = RecordDict({**reply.content, "arrays": ArrayRecord({**reply.content["arrays"], name: array})})
    return reply


def forged_receipt(reply):
    receipt = Receipt.from_record(reply.content[RECEIPT])
    reply.content = RecordDict({**reply.content, RECEIPT: ConfigRecord({**receipt.to_record(), "steps": 1})})
    return reply


DOUBLE = Array(np.full(2, 1e300))
BAD_REPLIES = [
    *(
        (lambda _, reply, array=array: with_array(reply, "bias", array), f"{reason}:bias")
        for array, reason in (
            (Array(np.array([np.nan, 0], np.float32)), "not-finite"),
            (Array(np.array([3e38, 0], np.float32)), "too-large"),
            (Array(np.zeros(3, np.float32)), "wrong-shape"),
            (DOUBLE, "wrong-shape"),
            (Array("float32", (2,), DOUBLE.stype, b"not numpy"), "undecodable"),
        )
    ),
    (lambda _, reply: with_array(reply, "extra", DOUBLE), "wrong-arrays"),
    (lambda _, reply: forged_receipt(reply), "receipt-does-not-match-grant"),
    (lambda message, _: Message(RecordDict(), reply_to=message), "malformed-receipt"),
    (lambda message, _: Message(Error(77, "secret text"), reply_to=message), "app-failed"),
]


def test_a_bad_reply_is_dropped_and_named_and_the_charge_stays(ledger_url):
    """In each round another one."""
    plan = plan_of(BLOBS, rounds=len(BAD_REPLIES), ledger=ledger_url)
    sending = iter(BAD_REPLIES)

    def changed(message, reply):
        change, _ = next(sending)
        return change(message, reply)

    records = run(plan, client=tampered(plan, changed)).records
    assert [record.failures for record in records] == [{"client-1": reason} for _, reason in BAD_REPLIES]
    assert all(record.participants == ("client-0", "client-2", "client-3") for record in records)
    assert records[-1].spent["client-1"].epsilon == records[-1].spent["client-0"].epsilon > 0.0
    charged = verify_ledger(Ledger(ledger_url)).replay.charges.items()
    states = [charge.state for key, charge in charged if key.dataset_id == "blobs/client-1"]
    assert states == ["committed"] * 6 + ["reserved"] * 3  # a true receipt confirms its charge, whatever is beside it


GIVEN_BACK = dict.fromkeys(RefusalCode, True) | {
    RefusalCode.ALREADY_CHARGED: False,  # it trained, and what it released may be on its way
    RefusalCode.CLIENT_FAILED: False,  # nobody knows how far it came
}
"""True for each code of a refusal that says that nothing was spent."""


def test_a_first_refusal_gives_a_charge_back_where_no_record_was_touched_and_is_named_whatever_its_code(ledger_url):
    """And who has no budget of its own left is not asked in the next round, whatever the server's ledger says."""
    codes, asked = dict(enumerate(GIVEN_BACK)), Counter()
    plan = plan_of(BLOBS, clients=len(codes) + 1, rounds=2, ledger=ledger_url)

    def refusing(message, context, reply):
        refused = codes.get(context.node_config["partition-id"])
        asked[refused] += 1
        return release.refusal(message, refused) if refused else reply

    first, last = run(plan, client=answering(plan, refusing)).records
    names = {code: next(c for c, failure in first.failures.items() if failure == code) for code in codes.values()}
    assert len(first.participants) == 1 and len(set(names.values())) == len(codes)
    assert asked == dict.fromkeys(GIVEN_BACK, 2) | {None: 2, RefusalCode.BUDGET_EXHAUSTED: 1}
    charged = verify_ledger(Ledger(ledger_url)).replay.charges
    for code, name in names.items():
        states = {charge.state for key, charge in charged.items() if key.dataset_id == f"blobs/{name}"}
        assert states == {"void" if GIVEN_BACK[code] else "reserved"}, code
    assert set(last.unreconciled) == {names[code] for code, back in GIVEN_BACK.items() if not back}


@pytest.mark.parametrize("refused", [RefusalCode.NO_ROOM, RefusalCode.BUDGET_EXHAUSTED], ids=str)
def test_a_refusal_of_a_grant_that_was_handed_out_before_gives_nothing_back(ledger_url, tmp_path, refused):
    """The client may have trained for it before the run was stopped."""
    plan = plan_of(BLOBS, rounds=2, ledger=ledger_url)

    def stop(message, context, reply):
        if message.content[GRANT]["round"] == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        run(plan, client=answering(plan, stop), checkpoints=tmp_path)
    again = tampered(plan, lambda message, _: release.refusal(message, refused))
    (record,) = run(plan, client=again, resume=load_checkpoint(tmp_path)).records
    assert record.failures == {"client-1": refused} and record.unreconciled == ("client-1",)
    assert record.spent["client-1"].steps == record.spent["client-0"].steps


@pytest.mark.parametrize(
    ("seed", "attempts"), [(None, [1, 2, 3]), pytest.param(1, [1, 1, 1], marks=pytest.mark.exhaustive)]
)
def test_a_round_that_is_stopped_twice_is_charged_for_each_noise_that_it_draws(ledger_url, tmp_path, seed, attempts):
    """Catches: another release under the charge of one that was made before, and a third attempt taken for a second."""
    plan = plan_of(BLOBS, clients=2, rounds=2, noise_multiplier=2.0, epsilon=50.0, seed=seed, ledger=ledger_url)
    granted = []

    def stop(message, context, reply):
        if message.content[GRANT]["round"] == 2 and context.node_config["partition-id"] == 1:
            granted.append((message.content[GRANT]["attempt"], reply.content["arrays"]["weight"].numpy().tobytes()))
            if len(granted) < 3:
                raise KeyboardInterrupt
        return reply

    for number in range(3):
        with pytest.raises(KeyboardInterrupt) if number < 2 else nullcontext():
            resume = load_checkpoint(tmp_path) if number else None
            run(plan, client=answering(plan, stop), checkpoints=tmp_path, resume=resume)
    assert [attempt for attempt, _ in granted] == attempts
    assert len({update for _, update in granted}) == len({*attempts})
    charged = verify_ledger(Ledger(ledger_url)).replay.charges
    assert {key.attempt for key in charged if key.round == 2} == {*attempts}


def test_a_round_of_which_everybody_says_that_it_was_charged_is_tried_once_more_and_not_again(ledger_url):
    plan = plan_of(BLOBS, rounds=1, noise_multiplier=2.0, epsilon=50.0, ledger=ledger_url)
    everybody = [f"client-{i}" for i in range(4)]
    lost = tampered(plan, lambda message, _: release.refusal(message, RefusalCode.ALREADY_CHARGED), everybody)
    with pytest.raises(RoundFailedError, match="already-charged"):
        run(plan, client=lost)
    charged = verify_ledger(Ledger(ledger_url)).replay.charges
    assert Counter(key.attempt for key in charged) == {1: 4, 2: 4}
    assert {charge.state for charge in charged.values()} == {"reserved"}


def test_what_a_strategy_must_not_do_and_a_round_without_an_update_stop_the_run_with_the_model_before(ledger_url):
    class Twice(FedAvg):
        def configure_train(self, *args):
            return [*super().configure_train(*args), *super().configure_train(*args)]

    class Broken(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({n: Array(a.numpy().astype(np.float64) * 1e300) for n, a in arrays.items()}), metrics

    def rounds():
        return Ledger(ledger_url).accounts(["blobs/client-0"])["blobs/client-0"].rounds

    plan = plan_of(BLOBS, rounds=3, ledger=ledger_url)
    with pytest.raises(ValueError, match="asks a client twice"):
        run(plan, Twice(**SAMPLING))
    with pytest.raises(RoundFailedError, match="not finite"):
        run(plan, Broken(**SAMPLING))
    assert rounds() == 1
    everybody = [f"client-{i}" for i in range(4)]
    with pytest.raises(RoundFailedError, match="no privacy is spent for nothing"):
        run(plan, client=tampered(plan, lambda m, _: Message(Error(2, ""), reply_to=m), everybody))
    assert rounds() == 2
    with pytest.raises(ValueError, match="round 1 was not opened"):
        PrivateStrategy(FedAvg(**SAMPLING), plan).aggregate_train(1, [])


def test_an_answer_that_comes_twice_or_for_another_round_counts_once(ledger_url):
    plan = plan_of(BLOBS, rounds=3, ledger=ledger_url)
    kept, noting = [], Noting()

    class Echo(InProcessGrid):
        def pull_messages(self, message_ids):
            replies = list(super().pull_messages(message_ids))
            kept.extend(Message(RecordDict(dict(r.content)), reply_to=r) for r in replies)
            for old, reply in zip(kept, replies, strict=False):
                old.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
            return [*replies, *replies, *kept[:4]]

    run(plan, noting, grid=Echo)
    assert [len(weights) for weights in noting.weights] == [4, 4, 4]


def test_too_few_clients_is_a_bounded_wait_and_a_clear_error(ledger_url):
    plan = plan_of(BLOBS, clients=4, node_timeout=0.2, ledger=ledger_url)
    told = (
        "3 of 4 clients came within 0.2 s, from 3 connected SuperNodes. Set clients = 3 in the app's configuration, "
        "start more SuperNodes, or raise node-timeout."
    )
    with pytest.raises(TooFewClientsError, match=f"^{re.escape(told)}$"):
        run(plan, grid=InProcessGrid(private_client(plan.task, plan.config), 3, {}))


def test_a_client_that_comes_back_between_two_looks_of_a_strategy_is_asked_however_late_that_is():
    """A SuperLink that starts again sees its SuperNodes one by one, and its answers may take half a minute."""
    strategy = FedAvg(min_train_nodes=2, min_available_nodes=2)
    for looks, enough in (([[7], [7], [7, 9]], True), ([[7], [9]], False)):
        left = cycle(looks)
        view = EligibleGrid(InProcessGrid(None, 0, {}), lambda left=left: next(left), timeout=0.0)
        asked = partial(strategy.configure_train, 1, ArrayRecord(), ConfigRecord(), view)
        if enough:
            assert {message.metadata.dst_node_id for message in asked()} == {7, 9}
        else:
            with pytest.raises(TooFewClientsError, match="more clients than the 1 that are connected"):
                asked()


@pytest.mark.exhaustive
def test_flower_s_own_loop_over_the_hooks_charges_and_trains_like_start():
    """Whoever drives the strategy by Flower's hooks gets the same rounds, without what is recorded of them."""
    runs = []
    for start in (PrivateStrategy.start, Strategy.start):
        plan = plan_of(BLOBS, rounds=2, local_evaluation=2, ledger=f"sqlite:///{len(runs)}.db")
        grid = InProcessGrid(private_client(plan.task, plan.config), 4, {})
        arrays = ArrayRecord(plan.task.model().state_dict())
        result = start(PrivateStrategy(FedAvg(**SAMPLING), plan), grid, arrays, num_rounds=2)
        accounts = Ledger(plan.config.ledger).accounts([f"blobs/client-{i}" for i in range(4)])
        told = {number: dict(metrics) for number, metrics in result.evaluate_metrics_clientapp.items()}
        runs.append(([array.data for array in result.arrays.values()], accounts, told))
    (_, charged, told), other = runs
    assert runs[0] == other and all(account.rounds == 2 for account in charged.values())
    assert list(told) == [2] and "clients_loss" in told[2]
