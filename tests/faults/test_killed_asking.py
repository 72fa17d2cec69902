"""SIGKILL at every labelled step of who asks and who answers: a charge stands, and buys one answer and no other."""

from __future__ import annotations

import signal

import pytest

from fedprivacy._support.failpoints import ANSWER_POINTS, CLIENT_POINTS
from fedprivacy.flower.client.node import GUARD
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from tests.faults import life
from tests.faults.killing import TIMES, lines, lived, on_guard, on_ledger, released

SERVER = (
    "server.run-opened",
    "ledger.before-reserve",
    "ledger.journal-written",
    "server.reserved",
    "ledger.before-settle",
    "server.settled",
    *ANSWER_POINTS,
)
"""That a server reaches when it asks."""


def deaths(points, reached):
    """(point, times): at each point, the first time that a life reaches it, and with the slow tests every time."""
    return [
        pytest.param(point, times, marks=[pytest.mark.exhaustive] if times > 1 else [])
        for point in points
        for times in range(1, reached.get(point, life.GRANTS) + 1)
    ]


@pytest.mark.parametrize(("point", "times"), deaths(CLIENT_POINTS, TIMES))
def test_a_client_killed_anywhere_counts_every_answer_that_left_it_and_draws_no_second_noise(
    processes, tmp_path, point, times
):
    assert lived(processes, life.tell, tmp_path, 2, point, times) == -signal.SIGKILL
    if (tmp_path / "hospital-0" / GUARD).exists():
        assert on_guard(tmp_path, 1, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(processes, life.tell, tmp_path, 2) == 0
    left = released(tmp_path)["hospital-0"]  # fails where one charge led to two different answers
    assert left >= life.GRANTS
    assert left <= on_guard(tmp_path, 1, "hospital-0") <= left + 1


@pytest.mark.parametrize("point", SERVER)
def test_a_server_killed_anywhere_counts_every_answer_and_asks_no_more_than_it_lost(processes, tmp_path, point):
    assert lived(processes, life.inquire, tmp_path, 1, point) == -signal.SIGKILL
    check_books(tmp_path)
    assert lived(processes, life.inquire, tmp_path, 1) == 0
    check_books(tmp_path)
    before = {client: on_ledger(tmp_path, 1, client) for client in ("hospital-0", "hospital-1")}
    assert all(1 <= charged <= 2 for charged in before.values())
    assert lived(processes, life.inquire, tmp_path, 1) == 0
    first, again = lines(tmp_path / life.RECORDED)
    assert again["reread"] == 2 and again["federation"] == first["federation"]
    assert before == {client: on_ledger(tmp_path, 1, client) for client in before}


def check_books(folder):
    """Both books hold at least what left, the server's at least what the client's does, and the journal is whole."""
    for client, left in released(folder).items():
        assert left <= on_guard(folder, 1, client) <= on_ledger(folder, 1, client)
    ledger = Ledger(life.question_plan_of(folder).config.ledger)
    verify_ledger(ledger)
    ledger.close()
