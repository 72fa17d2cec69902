"""The calculator: the epsilon of a training, and the noise that a budget needs. No records are read, nothing is run."""

from __future__ import annotations

from fedprivacy.accounting import calibration, pld
from fedprivacy.accounting.histories import check_delta, extend_history, person_history
from fedprivacy.accounting.risk import Risk
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian


def epsilon(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    relation: NeighbouringRelation | str = NeighbouringRelation.ADD_OR_REMOVE_ONE,
    past: History | None = None,
    rows_per_person: int = 1,
    clients_per_person: int = 1,
) -> float:
    """Return the privacy loss of DP-SGD against an observer of the noisy result of every step.

    Formal guarantee: an upper bound, by privacy loss distributions, with every rounding error counted; see
    `fedprivacy.accounting.pld`.

    >>> import fedprivacy as fp
    >>> round(fp.epsilon(sampling_rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5), 2)
    1.83

    A person with five rows, each of which is a record, loses more:

    >>> settings = {"sampling_rate": 0.01, "noise_multiplier": 1.0, "steps": 1000, "delta": 1e-5}
    >>> round(fp.epsilon(**settings, rows_per_person=5), 2)
    11.64

    Args:
        sampling_rate: q, probability with which each record joins a step, in (0, 1].
        noise_multiplier: sigma, standard deviation of the noise in clipping norms, > 0.
        steps: number of noisy steps, over all rounds, at least 1.
        delta: delta of the epsilon, in (0, 1), well below 1 / number of records.
        relation: protected fact: the presence of a record ("add-or-remove-one"), or its content ("zero-out").
        past: numbers of earlier executions on the same records, by event; None: none.
        rows_per_person: the most records that one person has at a client; 1: a person is a record. The loss is that of
            a person, see `fedprivacy.values.events.RowSampledGaussian`.
        clients_per_person: the clients at which one person has records; each trains, and has trained, as given here.

    Returns:
        Epsilon in nats, maybe infinite.

    Raises:
        ValueError: an argument is out of range, the past is under another relation, or several rows are asked for and
            the past holds a mechanism without a known guarantee for them.
    """
    training = _training(sampling_rate, noise_multiplier, steps, relation, past)
    return pld.epsilon(person_history(training, rows_per_person, clients_per_person), check_delta(delta))


def risk(
    *,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float,
    relation: NeighbouringRelation | str = NeighbouringRelation.ADD_OR_REMOVE_ONE,
    past: History | None = None,
    rows_per_person: int = 1,
    clients_per_person: int = 1,
) -> Risk:
    """Return the most that an attacker who sees the noisy result of every step of DP-SGD finds out about one record.

    Give either the training or, of any other mechanism, its epsilon. `Run.risk` is that of a run.

    Formal guarantee: upper bounds from the whole privacy profile; see `fedprivacy.accounting.risk`.

    >>> import fedprivacy as fp
    >>> risk = fp.risk(sampling_rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5)
    >>> risk.sentence()[:73]
    'An attacker who wrongly accuses 1\xa0% of the records that were not used fin'
    >>> round(float(risk.found(0.01)), 3), round(risk.advantage, 2), round(risk.right(0.01, prior=0.01), 3)
    (0.029, 0.16, 0.029)

    An epsilon and its delta are one point of that profile, and bound less:

    >>> round(float(fp.risk(epsilon=risk.epsilon, delta=1e-5).found(0.01)), 3)
    0.062

    Args:
        sampling_rate: q, probability with which each record joins a step, in (0, 1].
        noise_multiplier: sigma, standard deviation of the noise in clipping norms, > 0.
        steps: number of noisy steps, over all rounds, at least 1.
        epsilon: privacy loss at `delta`, of any mechanism that keeps them; then everything else is left out.
        delta: delta of the epsilon that the risk states beside it, in (0, 1).
        relation: protected fact: the presence of a record ("add-or-remove-one"), or its content ("zero-out").
        past: numbers of earlier executions on the same records, by event; None: none.
        rows_per_person: the most records that one person has at a client; 1: a person is a record.
        clients_per_person: the clients at which one person has records; each trains, and has trained, as given here.

    Raises:
        ValueError: as `epsilon`; or a training is given beside an epsilon, or without all of its numbers.
    """
    if epsilon is not None:
        training_given = any(each is not None for each in (sampling_rate, noise_multiplier, steps, past))
        if training_given or (rows_per_person, clients_per_person) != (1, 1):
            raise ValueError(
                f"epsilon is {epsilon:g}, which tells nothing of a training, nor of a person with several records; "
                "leave out either it or these."
            )
        return Risk.of_budget(epsilon, delta)
    if sampling_rate is None or noise_multiplier is None or steps is None:
        raise ValueError("a training is missing; give sampling_rate, noise_multiplier and steps, or epsilon alone.")
    training = _training(sampling_rate, noise_multiplier, steps, relation, past)
    return Risk.of_history(person_history(training, rows_per_person, clients_per_person), delta)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    relation: NeighbouringRelation | str = NeighbouringRelation.ADD_OR_REMOVE_ONE,
    past: History | None = None,
) -> float:
    """Return the smallest noise multiplier with which DP-SGD stays within a budget.

    >>> import fedprivacy as fp
    >>> sigma = fp.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    >>> round(sigma, 2)
    1.42
    >>> 0.999 < fp.epsilon(sampling_rate=0.01, noise_multiplier=sigma, steps=1000, delta=1e-5) <= 1.0
    True

    Args:
        epsilon: maximum privacy loss, in nats, the past included; finite.
        delta: delta of the epsilon, in (0, 1), well below 1 / number of records.
        sampling_rate: q, probability with which each record joins a step, in (0, 1].
        steps: number of noisy steps, over all rounds, at least 1.
        relation: protected fact: the presence of a record ("add-or-remove-one"), or its content ("zero-out").
        past: numbers of earlier executions on the same records, by event; None: none.

    Returns:
        Sigma, standard deviation of the noise in clipping norms. It spends at least 99.9 % of epsilon.

    Raises:
        ValueError: an argument is out of range, the past is under another relation or has spent the budget, or no noise
            multiplier keeps it.
    """
    budget, relation = PrivacyBudget(epsilon, delta), NeighbouringRelation(relation)
    return calibration.noise_multiplier(budget, sampling_rate, steps, relation, past)


def _training(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    relation: NeighbouringRelation | str,
    past: History | None,
) -> dict[Event, int]:
    if steps < 1:
        raise ValueError(f"steps is {steps}; choose at least 1.")
    event = PoissonSampledGaussian(sampling_rate, noise_multiplier, NeighbouringRelation(relation))
    return extend_history(past, event, steps)
