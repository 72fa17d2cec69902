"""SIGKILL at every labelled step of who asks and who answers: a charge stands, and buys one answer and no other."""

from __future__ import annotations

import pytest

from fedprivacy._support.failpoints import ANSWER_POINTS, CLIENT_POINTS
from fedprivacy.flower.client.node import GUARD
from tests.faults import life
from tests.faults.killing import check_books, deaths, lines, lived, on_guard, on_ledger, released
from tests.processes import KILLED

SERVER = [
    ("server.run-opened", 1),
    ("ledger.before-reserve", 1),
    ("ledger.journal-written", 1),
    ("server.reserved", 1),
    ("ledger.before-settle", 1),
    ("ledger.before-settle", 2),
    ("server.settled", 1),
    *((point, 1) for point in ANSWER_POINTS),
]
"""Points that a server reaches when it asks, and how often it has reached them."""

ASKING = ("server.reserved", "server.settled", *ANSWER_POINTS)
LANES = dict.fromkeys(ASKING, pytest.mark.exhaustive)
"""Marks of points; those before and between are as `test_killed_server.py` tries them, and are left to the soak."""


@pytest.mark.parametrize(("point", "times", "steps"), deaths(CLIENT_POINTS, moments=1))
def test_a_client_killed_anywhere_counts_every_answer_that_left_it_and_draws_no_second_noise(
    tmp_path, point, times, steps
):
    assert lived(life.tell, tmp_path, steps, point, times) == KILLED
    if (tmp_path / "hospital-0" / GUARD).exists():
        assert on_guard(tmp_path, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(life.tell, tmp_path, steps) == 0
    left = released(tmp_path)["hospital-0"]  # fails where one charge led to two different answers
    assert left >= life.ROUNDS
    assert left <= on_guard(tmp_path, "hospital-0") <= left + 1


@pytest.mark.parametrize(
    ("point", "times"),
    [pytest.param(*each, marks=LANES.get(each[0], pytest.mark.soak)) for each in SERVER],
)
def test_a_server_killed_anywhere_counts_every_answer_and_asks_no_more_than_it_lost(tmp_path, point, times):
    assert lived(life.inquire, tmp_path, 2, point, times) == KILLED
    check_books(tmp_path)
    assert lived(life.inquire, tmp_path, 2) == 0
    check_books(tmp_path)
    before = {client: on_ledger(tmp_path, client) for client in ("hospital-0", "hospital-1")}
    assert all(1 <= charged <= 2 for charged in before.values())
    assert lived(life.inquire, tmp_path, 2) == 0
    first, again = lines(tmp_path / life.RECORDED)
    assert again["reread"] == 2 and again["federation"] == first["federation"]
    assert before == {client: on_ledger(tmp_path, client) for client in before}
