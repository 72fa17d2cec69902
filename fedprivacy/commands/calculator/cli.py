"""`fedprivacy epsilon`, `sigma` and `risk`: they compute from what is typed or charged, and read no records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedprivacy.commands.ledger import LEDGER, opened_ledger
from fedprivacy.commands.terminal import OUT, Json, plain_errors, print_answer, print_json
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation

_SAMPLING_RATE = Annotated[
    float | None, typer.Option(help="Probability that each record joins a step.", show_default=False)
]
_NOISE = Annotated[
    float | None, typer.Option(help="Standard deviation of the noise over the clipping norm.", show_default=False)
]
_ACCOUNTANT = Annotated[
    str, typer.Option(help="Accountant; pld gives the guarantee.", metavar="pld|rdp|gdp|advanced|basic|all")
]
_STEPS = Annotated[int | None, typer.Option(help="Number of noisy steps, over all rounds.", show_default=False)]
_DELTA = Annotated[
    float | None, typer.Option(help="Delta of the epsilon, well below 1 / number of records.", show_default=False)
]
_RELATION = Annotated[
    NeighbouringRelation | None,
    typer.Option(help="Protected fact: that a record is there, or its contents. Default: add-or-remove-one."),
]
_ROWS = Annotated[int, typer.Option(help="The most records that one person has at a client.")]
_CLIENTS = Annotated[int, typer.Option(help="Number of clients with records of one person, all with these trainings.")]
_HISTORY = Annotated[str, typer.Option(metavar="FILE", help="Instead of rate, noise, steps; - is stdin.")]


def epsilon(
    *,
    sampling_rate: _SAMPLING_RATE = None,
    noise_multiplier: _NOISE = None,
    steps: _STEPS = None,
    delta: _DELTA = None,
    accountant: _ACCOUNTANT = "pld",
    relation: _RELATION = None,
    rows_per_person: _ROWS = 1,
    clients_per_person: _CLIENTS = 1,
    history: _HISTORY = "",
    as_json: Json = False,
) -> None:
    """Tell what a training costs a record, or a person with several: its epsilon. Reads no records, runs nothing.

    A history is a JSON list of trainings: [{"sampling_rate": 0.01, "noise_multiplier": 1.1, "steps": 1000}, ...]

    With --json, an epsilon that is no finite number is null, and `notes` says why.
    """
    from fedprivacy.accounting.histories import check_delta, person_history
    from fedprivacy.commands.calculator import trainings as asked
    from fedprivacy.commands.calculator.answers import Spent, costs, spent_json, spent_page

    typed: dict[str, Any] = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "steps": steps}
    with plain_errors(ValueError, code=2):
        trainings = asked.given(**typed, history=history, relation=relation, delta=delta)
        assert delta is not None
        executed = person_history(asked.history_of(trainings), rows_per_person, clients_per_person)
        answers = costs(accountant, executed, check_delta(delta))
    spent = Spent(trainings, delta, answers, rows_per_person, clients_per_person)
    print_answer(lambda: spent_json(spent), lambda: spent_page(spent), as_json=as_json)


def sigma(
    *,
    epsilon: Annotated[float | None, typer.Option(help="Most that may be spent, past included.")] = None,
    delta: _DELTA = None,
    sampling_rate: _SAMPLING_RATE = None,
    steps: _STEPS = None,
    relation: _RELATION = None,
    past: Annotated[str, typer.Option(metavar="FILE", help="Earlier trainings, like epsilon's --history.")] = "",
    as_json: Json = False,
) -> None:
    """Tell what noise a budget needs: the smallest noise multiplier. Reads no records, runs nothing."""
    from fedprivacy.commands.calculator.answers import least_noise, noise_json, noise_page
    from fedprivacy.commands.calculator.trainings import missing

    with plain_errors(ValueError, code=2):
        if epsilon is None or delta is None or sampling_rate is None or steps is None:
            raise missing(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
        noise = least_noise(PrivacyBudget(epsilon, delta), sampling_rate, steps, relation, past)
    print_answer(lambda: noise_json(noise), lambda: noise_page(noise), as_json=as_json)


def risk(
    *,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon alone, with --delta: of any mechanism that keeps them.")
    ] = None,
    delta: _DELTA = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a run: of its client that has spent most.")] = None,
    ledger: LEDGER = "",
    dataset: Annotated[str, typer.Option(help="Only this dataset of the ledger, and of persons in it.")] = "",
    sampling_rate: _SAMPLING_RATE = None,
    noise_multiplier: _NOISE = None,
    steps: _STEPS = None,
    history: _HISTORY = "",
    relation: _RELATION = None,
    rows_per_person: _ROWS = 1,
    clients_per_person: _CLIENTS = 1,
    figure: Annotated[str, typer.Option(metavar="FILE", help="Draw the curve: .svg, .png, .html, .json.")] = "",
    as_json: Json = False,
) -> None:
    """Tell what an attacker who must accuse somebody gains: how many of the used records are found, at most.

    From what was charged (--run, --ledger, --dataset) or a training (--sampling-rate, --noise-multiplier, --steps; or
    --history, as for epsilon), the whole trade-off curve is used. From --epsilon and --delta alone only the worst
    mechanism that keeps them can be told.
    """
    from fedprivacy.accounting.risk import Risk
    from fedprivacy.commands import risk_page as showing
    from fedprivacy.commands.calculator.trainings import AskingError, given, history_of, missing
    from fedprivacy.ledger import LedgerError

    training: dict[str, Any] = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "steps": steps}
    person = showing.Person(rows_per_person, clients_per_person)
    of_ledger, charged = bool(ledger or dataset), run is not None or bool(ledger or dataset)
    typed = bool(history) or any(value is not None for value in training.values())
    with plain_errors(ValueError, LedgerError, code=2):
        if [epsilon is not None, typed, run is not None, of_ledger].count(True) != 1:
            raise AskingError(
                "risk is of one thing; give either --epsilon with --delta, or a training, or --run, or --ledger."
            )
        if charged and (delta is not None or relation):
            raise AskingError("delta and relation are those of what was charged; leave them out.")
        if epsilon is not None and (person != (1, 1) or relation):
            raise AskingError(
                "epsilon alone tells nothing of a person with several records, and of no relation; leave them out, or "
                "give the training (--sampling-rate, --noise-multiplier, --steps)."
            )
        if run is not None:
            subjects = showing.risk_of_run(run, person)
        elif charged:
            with opened_ledger(ledger) as opened:
                subjects = showing.risk_of_ledger(opened, dataset, person)
        elif epsilon is None:
            trainings = given(**training, history=history, relation=relation, delta=delta)
            subjects = [showing.risk_after(history_of(trainings), delta or 0.0, person)]
        elif delta is None:
            raise missing(delta=delta)
        else:
            subjects = [showing.StatedRisk(risk=Risk.of_budget(epsilon, delta))]
        listed = len(subjects) > 1 and run is None
        if figure:
            showing.draw(subjects, Path(figure), listed=listed)
    if as_json:
        found = [showing.as_fields(subject) for subject in subjects]
        print_json(found[0] if len(found) == 1 else {"subjects": found})
        return
    OUT.print(showing.page(subjects, listed=listed), highlight=False)
    if figure:
        OUT.print(f"Figure: {figure}", highlight=False, soft_wrap=True, markup=False)
