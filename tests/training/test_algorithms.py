"""Each algorithm does what its paper says, moves by granted steps alone, and is one page for one client and many."""

import pytest
import torch
from torch import nn

from fedprivacy.training.algorithms import (
    ALGORITHMS,
    RoundTurnout,
    StepsExceededError,
    algorithm_of,
)
from fedprivacy.training.algorithms.ditto import Ditto
from fedprivacy.training.algorithms.fedavg import FedAvg
from fedprivacy.training.algorithms.local import LocalTraining
from fedprivacy.training.algorithms.mr_mtl import MeanRegularised
from fedprivacy.training.algorithms.scaffold import MeanControl, Scaffold
from fedprivacy.training.algorithms.shared_body import FedPer, FedRep, head_of, normalisations_of
from fedprivacy.training.local_round import Descent
from fedprivacy.training.optimizers import SGD

RATE = 0.1
EVERY = [kind() for kind in ALGORITHMS.values()]
MASK = torch.tensor([False, False, True])


def pulls_to(target, rate=RATE):
    """A round of steps whose gradients are those of |position - target|^2 / 2; `target` is shape [..., 3]."""

    def gradient(step, position):
        return position - target

    return lambda steps: Descent(gradient, SGD(rate), 0.0, steps)


def begun(shared, own=None, control=None, steps=4, target=None, personal=MASK):
    descent = pulls_to(torch.ones_like(shared) if target is None else target)(steps)
    return descent.round(shared, shared if own is None else own, control, personal)


def test_more_steps_than_were_granted_are_refused_before_the_first_of_them():
    client = begun(torch.zeros(3), steps=3)
    client.descend(client.shared, 2)
    with pytest.raises(StepsExceededError, match="2 private steps after 2, and 3 were granted"):
        client.descend(client.shared, 2)
    assert client.descend.taken == 2


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda a: type(a).__name__)
def test_no_two_steps_of_a_round_share_a_position_in_the_keystream(algorithm):
    """Two steps with one sample and one noise would be one release that is charged as two, and tell more than two."""
    shared, own, numbers = torch.zeros(3), torch.ones(3), []

    def gradient(step, position):
        numbers.append(step)
        return position - 1.0

    descent = Descent(gradient, SGD(RATE), 0.0, 5)
    algorithm.train(descent.round(shared, own, None, MASK))
    assert numbers == [1, 2, 3, 4, 5]
    assert torch.equal(shared, torch.zeros(3)) and torch.equal(own, torch.ones(3)), "nothing given is changed"


def test_local_training_sends_what_it_was_sent():
    shared, own = torch.randn(3), torch.randn(3)
    update = LocalTraining().train(begun(shared, own))
    assert torch.equal(update.sent, shared)
    assert torch.equal(update.kept, FedAvg().train(begun(own)).sent)


@pytest.mark.parametrize("kind", [MeanRegularised, Ditto])
def test_the_pull_is_that_of_every_step_and_not_of_one(kind):
    """Ten steps of gradient descent on lambda/2 |own - shared|^2; the records move Ditto's other model alone."""
    others = 10 if kind is Ditto else 0
    descent = Descent(lambda step, at: torch.full_like(at, float(step < others)), SGD(RATE), 0.0, 10 + others)
    shared, own = torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])
    kept = kind(pull=1.0).train(descent.round(shared, own, None, None)).kept  # half of Ditto's steps move the other
    expected = own
    for _ in range(10):
        expected = expected - 0.1 * 1.0 * (expected - shared)
    torch.testing.assert_close(kept, expected)
    assert (kept / own).tolist() == pytest.approx([0.349] * 3, abs=1e-3)


@pytest.mark.parametrize(("personal", "steps", "first"), [(0, 4, 2), (1, 4, 3), (3, 4, 1), (3, 2, 1), (0, 1, 1)])
def test_ditto_divides_the_steps_and_keeps_its_model_at_home(personal, steps, first):
    shared, own = torch.zeros(3), torch.full((3,), 5.0)
    update = Ditto(pull=0.0, personal_steps=personal).train(begun(shared, own, steps=steps))
    assert torch.allclose(update.sent, torch.full((3,), 1 - 0.9**first))
    assert torch.allclose(update.kept, torch.full((3,), 1 + 4 * 0.9 ** (steps - first)))
    assert torch.equal(
        update.sent, Ditto(pull=0.0, personal_steps=personal).train(begun(shared, own * 7, steps=steps)).sent
    )


@pytest.mark.parametrize("algorithm", [FedPer(), FedRep()])
def test_what_is_personal_is_not_sent_and_what_is_shared_is_not_kept(algorithm):
    shared, own = torch.tensor([0.0, 0.0, -8.0]), torch.tensor([9.0, 9.0, 4.0])
    update = algorithm.train(begun(shared, own))
    assert update.sent[2] == -8.0
    assert (update.sent[:2] > 0).all()
    other = algorithm.train(begun(shared, torch.tensor([-9.0, 1.0, 4.0])))
    assert torch.equal(other.sent, update.sent)
    assert torch.equal(algorithm.model(shared, update.kept, MASK)[:2], shared[:2])
    assert algorithm.model(shared, update.kept, MASK)[2] == update.kept[2] != 4.0


@pytest.mark.parametrize(("personal", "steps", "headed"), [(0, 4, 2), (1, 4, 1), (3, 4, 3), (1, 3, 1), (3, 2, 1)])
def test_the_head_of_fedrep_moves_first_and_alone(personal, steps, headed):
    places = []

    def gradient(step, position):
        places.append(position.clone())
        return torch.ones(3)

    shared = torch.zeros(3)
    algorithm = FedRep(personal_steps=personal)
    algorithm.train(Descent(gradient, SGD(1.0), 0.0, steps).round(shared, shared, None, MASK))
    moved = [(-max(0, n - headed), -min(n, headed)) for n in range(steps)]  # the body's, the head's
    assert [place.tolist() for place in places] == [[body, body, head] for body, head in moved]


def test_scaffold_s_controls_are_the_mean_noisy_gradients_and_their_server_knows_the_mean():
    """Clients come and go at random; after each round c is the mean of the controls of all that ever came."""
    random = torch.Generator().manual_seed(3)
    targets = torch.randn(6, 3, generator=random, dtype=torch.float64)
    shared, control, kept = torch.zeros(3, dtype=torch.float64), None, {}
    for number in range(12):
        chosen = torch.randperm(6, generator=random)[: 3 if number % 2 else 2].tolist()
        sent, heard = [], {}
        for client in chosen:
            gradients = []

            def gradient(step, position, client=client, gradients=gradients):
                noisy = position - targets[client] + torch.randn(3, generator=random, dtype=torch.float64)
                gradients.append(noisy.clone())
                return noisy

            own = kept.get(client, Scaffold().first(shared, control))
            update = Scaffold().train(Descent(gradient, SGD(RATE), 0.0, 5).round(shared, own, control, None))
            sent.append(update.sent)
            heard[client] = update.kept
            torch.testing.assert_close(update.kept, torch.stack(gradients).mean(0))
        kept |= heard
        mean = torch.stack(sent).mean(0)
        control = MeanControl().advance(control, shared, mean, RoundTurnout(len(chosen) / len(kept), 5, RATE))
        shared = mean
        torch.testing.assert_close(control, torch.stack(list(kept.values())).mean(0))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"name": 3}', '{"name": "raw"}', '{"name": "mr-mtl"}'),
        *('{"name":"fedavg"}', '{"name": "fedavg", "pull": 1.0}', '{"pull": 1.00, "name": "mr-mtl"}'),
        *('{"name": "mr-mtl", "pull": NaN}', '{"name": "mr-mtl", "pull": -1.0}', '{"name": "mr-mtl", "pull": 1e7}'),
        *('{"name": "fedrep", "personal_steps": -1}', '{"name": "fedrep", "personal_steps": true}'),
    ],
    ids=lambda text: text[:30],
)
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"algorithm|pull|personal_steps"):
        algorithm_of(text)


def test_the_head_is_the_last_layer_and_normalisations_are_where_they_are():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
    assert head_of(model) == {"4.weight", "4.bias"}
    assert normalisations_of(model) == {"1.weight", "1.bias"}
    model[4].requires_grad_(False)
    assert head_of(model) == {"3.weight", "3.bias"}
    with pytest.raises(ValueError, match="choose algorithm local"):
        head_of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no normalisation layer"):
        normalisations_of(nn.Linear(2, 2))
