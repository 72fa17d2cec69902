"""`fedprivacy epsilon` and `fedprivacy sigma`. They read no records and run nothing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedprivacy.commands.terminal import Json, plain_errors, print_answer
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation

SAMPLING_RATE = Annotated[
    float | None, typer.Option(help="Probability that each record joins a step.", show_default=False)
]
NOISE = Annotated[
    float | None, typer.Option(help="Standard deviation of the noise over the clipping norm.", show_default=False)
]
_ACCOUNTANT = Annotated[
    str, typer.Option(help="Accountant; pld gives the guarantee.", metavar="pld|rdp|gdp|advanced|basic|all")
]
STEPS = Annotated[int | None, typer.Option(help="Number of noisy steps, over all rounds.", show_default=False)]
DELTA = Annotated[
    float | None, typer.Option(help="Delta of the epsilon, well below 1 / number of records.", show_default=False)
]
RELATION = Annotated[
    NeighbouringRelation | None,
    typer.Option(help="Protected fact: that a record is there, or its contents. Default: add-or-remove-one."),
]
ROWS = Annotated[int, typer.Option(help="The most records that one person has at a client.")]
CLIENTS = Annotated[int, typer.Option(help="Number of clients with records of one person, all with these trainings.")]
HISTORY = Annotated[str, typer.Option(metavar="FILE", help="Instead of rate, noise, steps; - is stdin.")]


def epsilon(
    *,
    sampling_rate: SAMPLING_RATE = None,
    noise_multiplier: NOISE = None,
    steps: STEPS = None,
    delta: DELTA = None,
    accountant: _ACCOUNTANT = "pld",
    relation: RELATION = None,
    rows_per_person: ROWS = 1,
    clients_per_person: CLIENTS = 1,
    history: HISTORY = "",
    as_json: Json = False,
) -> None:
    """Tell what a training costs a record, or a person with several: its epsilon. Reads no records, runs nothing.

    A history is a JSON list of trainings: [{"sampling_rate": 0.01, "noise_multiplier": 1.1, "steps": 1000}, ...]

    With --json, an epsilon that is no finite number is null, and `notes` says why.
    """
    from fedprivacy.accounting.histories import check_delta, of_person
    from fedprivacy.commands.calculator import trainings as asked
    from fedprivacy.commands.calculator.costs import Spent, costs
    from fedprivacy.commands.calculator.pages import spent_json, spent_page

    typed: dict[str, Any] = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "steps": steps}
    with plain_errors(ValueError, code=2):
        trainings = asked.given(**typed, history=history, relation=relation, delta=delta)
        assert delta is not None
        executed = of_person(asked.composed(trainings), rows_per_person, clients_per_person)
        answers = costs(accountant, executed, check_delta(delta))
    spent = Spent(trainings, delta, answers, rows_per_person, clients_per_person)
    print_answer(lambda: spent_json(spent), lambda: spent_page(spent), as_json=as_json)


def sigma(
    *,
    epsilon: Annotated[float | None, typer.Option(help="Most that may be spent, past included.")] = None,
    delta: DELTA = None,
    sampling_rate: SAMPLING_RATE = None,
    steps: STEPS = None,
    relation: RELATION = None,
    past: Annotated[str, typer.Option(metavar="FILE", help="Earlier trainings, like epsilon's --history.")] = "",
    as_json: Json = False,
) -> None:
    """Tell what noise a budget needs: the smallest noise multiplier. Reads no records, runs nothing."""
    from fedprivacy.commands.calculator.costs import least_noise
    from fedprivacy.commands.calculator.pages import noise_json, noise_page
    from fedprivacy.commands.calculator.trainings import missing

    with plain_errors(ValueError, code=2):
        if epsilon is None or delta is None or sampling_rate is None or steps is None:
            raise missing(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
        noise = least_noise(PrivacyBudget(epsilon, delta), sampling_rate, steps, relation, past)
    print_answer(lambda: noise_json(noise), lambda: noise_page(noise), as_json=as_json)
