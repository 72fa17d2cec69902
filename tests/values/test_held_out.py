"""The spread of scores over clients: records count in the mean, clients in the quartiles."""

import pytest

from fedprivacy.values.metrics import HeldOut, metrics_of_each, spread_of


def test_the_mean_is_of_records_and_the_quartiles_are_of_clients():
    each = {
        "a": HeldOut(90, {"loss": 1.0}),
        "b": HeldOut(10, {"loss": 2.0}),
        "c": HeldOut(100, {"loss": 5.0}),
        "without records": HeldOut(0, {}),
    }
    assert spread_of(each) == {"loss": (pytest.approx(3.05), 1.0, 1.5, 2.0, 3.5, 5.0)}
    assert metrics_of_each(each) == {"each_loss": pytest.approx(3.05), "each_loss_least": 1.0, "each_loss_most": 5.0}


def test_one_client_is_all_of_its_spread_two_have_quartiles_and_nobody_has_none():
    assert spread_of({"a": HeldOut(3, {"loss": 2.0})}) == {"loss": (2.0,) * 6}
    two = spread_of({"a": HeldOut(1, {"loss": 2.0}), "b": HeldOut(1, {"loss": 4.0})})
    assert two == {"loss": (3.0, 2.0, 2.5, 3.0, 3.5, 4.0)}
    assert spread_of({}) == spread_of({"a": HeldOut(0, {})}) == metrics_of_each({}) == {}
