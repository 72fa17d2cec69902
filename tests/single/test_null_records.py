"""Records that count for nothing: their owner is told how many and why before a charge, and most are refused."""

import re

import pytest
import torch

import fedprivacy as fp
from tests.single.coins import coins, new_model, private, train

INPUTS, SIDES = coins(40)
PROTOTYPE = torch.zeros(2), torch.tensor(0)


class Items(torch.utils.data.Dataset):
    """The first of the coins as something else than a pair."""

    def __init__(self, item, wrong=40):
        self._item, self._wrong = item, wrong

    def __len__(self):
        return 40

    def __getitem__(self, place):
        pair = INPUTS[place], SIDES[place]
        return self._item(*pair) if place < self._wrong else pair


def failing(point, side):
    raise KeyError(float(point[0]))


ITEMS = {
    "three values": (lambda point, side: (point, side, 1), "an item that is a tuple of 3"),
    "a target that is a float": (lambda point, side: (point, float(side)), "a target of shape [] and torch.float32"),
    "a longer input": (lambda point, side: (torch.ones(3), side), "an input of shape [3] and torch.float32"),
    "an error": (failing, "an item that raises KeyError"),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_items_of_another_kind_are_counted_with_the_reason_and_most_are_refused(kind, caplog, tmp_path):
    item, reason = ITEMS[kind]
    trained = train(data=Items(item, wrong=3), prototype=PROTOTYPE, steps=1)
    assert trained.steps == 1 and "data: 3 of 40 records cannot be read and count for nothing." in caplog.text
    assert f"3 rows, {reason}" in caplog.text and "→ let the Dataset return (input, target)" in caplog.text
    refused = re.escape("more than half of the records count for nothing: 40 of 40 records cannot be read")
    with pytest.raises(ValueError, match=f"{refused}.*{re.escape(reason)}.*say allow_null=True"):
        train(data=Items(item), prototype=PROTOTYPE, account=tmp_path / "account.log")
    assert not (tmp_path / "account.log").exists()
    assert train(data=Items(item), prototype=PROTOTYPE, steps=1, allow_null=True).steps == 1


WITHOUT_GRADIENT = {
    "a class that is not there": lambda wrong: (INPUTS, SIDES.index_fill(0, torch.arange(wrong), 2)),
    "an infinite number": lambda wrong: (INPUTS.index_fill(0, torch.arange(wrong), torch.inf), SIDES),
}


@pytest.mark.parametrize("kind", WITHOUT_GRADIENT)
def test_records_without_a_gradient_are_counted_and_most_are_refused(kind, caplog):
    data = WITHOUT_GRADIENT[kind]
    assert private(new_model(), data(0)).left == 6 and not caplog.records
    for wrong in (1, 20):
        caplog.clear()
        assert private(new_model(), data(wrong)).left == 6
        assert f"data: {wrong} of 40 records that were tried have no gradient" in caplog.text
        assert "labels and words are in range" in caplog.text
    with pytest.raises(ValueError, match="more than half of the records count for nothing: 21 of 40 records that were"):
        private(new_model(), data(21))
    assert private(new_model(), data(40), allow_null=True).left == 6


def test_views_and_drawn_rows_are_tried_as_they_are_trained(caplog):
    flipped = fp.Augmentation(lambda points, chances: points * (0.5 + chances), draws=2)
    shard = fp.Shard(INPUTS, SIDES.index_fill(0, torch.arange(2), 2), persons=[n // 4 for n in range(40)], most_rows=4)
    given = {"augmentation": flipped, "augmentation_multiplicity": 3, "rows_per_step": 4, "batch_size": 5}
    private(new_model(), shard, **given)
    assert "data: 1 of 10 persons that were tried have no gradient" in caplog.text
