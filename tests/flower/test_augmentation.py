"""Views of records in whole rounds: with and without privacy, at a deployed client, in an audit."""

import pytest

import fedprivacy as fp
from fedprivacy.flower.wire.messages import RECEIPT, RefusalCode
from fedprivacy.runs.settings.configuration import ConfigError
from tests.flower.asked import code, spent, train
from tests.flower.blobs import Blobs, Chain, plan_of


class Wandering(Blobs):
    """Blobs, of which the mean is taken off: that shows the others."""

    augmentation = fp.Augmentation(lambda points, chances: points - points.mean(0), draws=1)


def test_a_task_without_views_or_with_others_than_of_each_record_is_refused_before_anything_is_spent():
    with pytest.raises(ConfigError, match="augmentation-multiplicity is set, and task blobs has no augmentation"):
        plan_of(Blobs(), augmentation_multiplicity=2)
    with pytest.raises(ConfigError, match="task blobs: a view of a record is another one without the others"):
        fp.simulate(Wandering(), clients=2, augmentation_multiplicity=2, out="out", progress=False)


@pytest.mark.parametrize("views", [1, 256])
def test_a_deployed_client_takes_as_many_views_as_there_may_be(node, views):
    reply = train(node, task=Chain(), augmentation_multiplicity=views)
    assert list(reply.content) == ["arrays", RECEIPT] and spent(node) == 2


@pytest.mark.parametrize("task", [Blobs(), Wandering()], ids=["none", "that show others"])
def test_a_deployed_client_whose_task_has_no_views_is_not_charged(node, task):
    assert code(train(node, task=task, augmentation_multiplicity=2)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0


def test_views_count_among_the_steps_that_a_client_takes_at_most(node):
    """Else a server would have a host work 256 times as long as its owner allows."""
    limited, task = node | {"most-steps": 8, "epsilon": 50.0}, Chain()
    for steps, views in ((9, 0), (3, 3), (2, 8)):
        before = spent(limited)
        reply = train(limited, task=task, steps=steps, augmentation_multiplicity=views)
        assert (str(code(reply)), spent(limited)) == ("grant-invalid", before)
    for steps, views in ((8, 0), (8, 1), (2, 4)):
        assert "arrays" in train(limited, task=task, steps=steps, augmentation_multiplicity=views).content
