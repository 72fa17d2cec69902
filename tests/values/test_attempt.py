"""A charge has one name from strategy to books."""

import dataclasses

import pytest

from fedprivacy.ledger.replay import ChargeKey
from fedprivacy.values.attempt import Attempt
from tests.flower.blobs import A_GRANT


def test_an_attempt_is_read_from_whatever_names_it():
    attempt = Attempt("run", 3, 1)
    assert Attempt.named_in(A_GRANT.to_record()) == A_GRANT.charged_as == attempt == Attempt("run", 3)
    assert Attempt.named_in(attempt._asdict() | {"steps": 2}) == attempt
    assert Attempt(*ChargeKey("a", *attempt)[1:]) == attempt
    with pytest.raises(KeyError, match="round"):
        Attempt.named_in({"run_id": "run", "attempt": 1})


def test_another_attempt_at_the_same_round_is_another_charge():
    again = dataclasses.replace(A_GRANT, attempt=2).charged_as
    assert again == A_GRANT.charged_as.again != A_GRANT.charged_as
    assert len({again, A_GRANT.charged_as, Attempt("run", 4), Attempt("other", 3)}) == 4
