"""A run's end fits on a screen, whatever the number of its clients, and shows those that a person looks for."""

import io
import json
import random
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedprivacy.commands.outcome import MOST_FAILURES, client_table, failures, held_out_table, outcome_text
from fedprivacy.runs.placement import HERE
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.metrics import HeldOut
from fedprivacy.values.spent import ClientState
from tests.commands.running import fedprivacy, unwrapped
from tests.runs.histories import settings
from tests.runs.store.made_up import finished, spent

LIMIT = 40
"""Lines of a terminal of 80 columns."""


def shown(*parts, columns=80):
    console = Console(file=io.StringIO(), width=columns, highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def history(clients, kinds, *, trouble=0, rounds=2):
    """A run whose clients have spent `kinds` different epsilons; the first ones have spent all, one of them early."""
    random.seed(kinds)

    def account(n, number):
        left = 0 if n == 0 or (n < clients // 3 and number == rounds) else 4
        part = (1 + n % kinds) / kinds
        return spent(f"client-{n}", 3.0 if left == 0 else 2.9 * part * number / rounds, rounds=number, steps_left=left)

    names = [f"client-{n}" for n in range(clients - trouble, clients)]
    results = [
        finished(
            number,
            [account(n, number) for n in range(clients)],
            failures={name: f"client-error-{place % 9}" for place, name in enumerate(names)} if number else {},
            unreconciled=names[::2] if number else [],
        )
        for number in range(rounds + 1)
    ]
    held = {f"client-{n}": HeldOut(3, {"accuracy": 0.5, "loss": 1.0, "auc": n / clients}) for n in range(clients)}
    results[-1] = replace(results[-1], held_out=held)
    told = settings(rounds=rounds, task="digits", clients=clients)
    return RunHistory(told, 1.5, NeighbouringRelation.ZERO_OUT, "accuracy", results[0], tuple(results[1:]))


@pytest.mark.parametrize(("clients", "kinds"), [(10, 7), pytest.param(1000, 1000, marks=pytest.mark.exhaustive)])
def test_a_run_ends_on_one_screen_whatever_the_number_of_clients(clients, kinds):
    run = history(clients, kinds, trouble=9)
    config = resolve({"task": "digits", "clients": clients, "out": "runs/digits-1"})
    end = outcome_text(run, config, {"task": "digits", "clients": clients}, HERE)
    lines = shown(client_table(run), held_out_table(run), *failures(run), end).splitlines()
    assert len(lines) <= LIMIT and max(map(len, lines)) <= 80
    assert any("spent as planned" in line for line in lines) and any(" exhausted" in line for line in lines)
    assert len(shown(client_table(run, whole=True)).splitlines()) >= clients


def test_of_many_clients_equal_ones_are_one_row_up_to_ten_have_each_their_own_and_failures_are_counted_by_reason():
    text = shown(client_table(history(90, 2)))
    active = [line.split()[:2] for line in text.splitlines() if "active" in line]
    assert active == [["30", "clients"], ["30", "clients"]]
    (early,) = (line for line in text.splitlines() if "client-0 " in line)
    assert early.split()[-1] == "exhausted" and "29 clients" in text
    few = shown(client_table(history(9, 2))).splitlines()
    assert [line.split()[0] for line in few if "client-" in line] == [f"client-{n}" for n in range(9)]
    assert failures(history(10, 1, trouble=2)) == [
        "client-8: client-error-0 in 2 rounds",
        "client-9: client-error-1 in 2 rounds",
    ]
    lines = failures(history(100, 1, trouble=90))
    assert lines[0] == "10 clients: client-error-0, 20 updates in all" and len(lines) == MOST_FAILURES + 1
    assert lines[-1] == "and 6 more reasons, in the report"


def test_of_many_the_quantiles_are_shown_and_who_is_in_trouble():
    run = history(1000, 1000, trouble=7)
    text = shown(client_table(run))
    by_share = sorted(run.standings.values(), key=lambda client: client.spent.epsilon, reverse=True)
    for label, place in (("75 %", 250), ("median", 500), ("25 %", 749), ("least", 999)):
        row = next(line for line in text.splitlines() if line.strip().startswith(f"{label}: "))
        assert float(row.split(": ")[1].split()[5]) == pytest.approx(by_share[place].spent.epsilon, abs=0.01), label
    for state in ("exhausted", "unreconciled", "failed"):
        assert sum(line.split()[-1:] == [state] for line in text.splitlines()) == 1
    counts = " ".join(text.split())
    assert "1,000 clients: 660 active, 332 spent as planned, 1 exhausted, 4 unreconciled, 3 failed." in counts
    near = sum(c.state is ClientState.ACTIVE and c.spent.share >= 0.9 for c in by_share)
    assert near and f"{near} active clients have spent 90 % of their budget or more." in counts


TERMS = json.dumps({f"client-{n:04}": {"epsilon": 1.0 + n / 4, "sampling_rate": 0.1} for n in range(9)})
MANY = ("--task", "cancer", "--clients", "1000", "--noise-multiplier", "2", "--epsilon", "3", "--spend", "1")


def test_a_plan_is_one_screen_or_one_line(tmp_path):
    shown = fedprivacy("plan", *MANY, "--client-terms", TERMS, cwd=tmp_path, columns=80).stdout
    assert "of 10 that differ" in shown and shown.count("\n") <= LIMIT and max(map(len, shown.splitlines())) <= 80
    three = fedprivacy("plan", "--task", "cancer", "--clients", "3", "--epsilon", "3", "--spend", "1", cwd=tmp_path)
    assert "│ 3 clients │ 3 │ 0.00 │ 1.00 │ 2.00 │ 2 │" in unwrapped(three.stdout)
    quiet = fedprivacy("plan", "--task", "cancer", "--rounds", "3", "-q", cwd=tmp_path).stdout
    assert re.fullmatch(r"noise multiplier \d\.\d{4}; epsilon 2.00 at delta 0.0001 after 3 rounds\n", quiet)


@pytest.mark.exhaustive
def test_answers_of_many_clients_are_few_unless_all_are_wanted(tmp_path):
    options = ("ask", "--task", "cancer", "--clients", "30", "--by-client", "count", "--out", "asked")
    usual = fedprivacy(*options, cwd=tmp_path).stdout
    assert usual.count("│ client-") == 10 and "and 20 more clients: --verbose shows each" in usual
    quiet, whole = (fedprivacy(*options, how, cwd=tmp_path).stdout for how in ("--quiet", "--verbose"))
    assert whole.count("│ client-") == 30 and "Read from the ledger" in whole and "Read from" not in quiet
