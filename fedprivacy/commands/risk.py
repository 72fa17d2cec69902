"""`fedprivacy risk`: what an attacker who accuses records of having been used can find. Reads no records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedprivacy.commands.calculator.cli import CLIENTS, DELTA, HISTORY, NOISE, RELATION, ROWS, SAMPLING_RATE, STEPS
from fedprivacy.commands.ledger import LEDGER, opened_ledger
from fedprivacy.commands.terminal import OUT, Json, plain_errors, print_json


def risk(
    *,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon alone, with --delta: of any mechanism that keeps them.")
    ] = None,
    delta: DELTA = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a run: of its client that has spent most.")] = None,
    ledger: LEDGER = "",
    dataset: Annotated[str, typer.Option(help="Only this dataset of the ledger, and of persons in it.")] = "",
    sampling_rate: SAMPLING_RATE = None,
    noise_multiplier: NOISE = None,
    steps: STEPS = None,
    history: HISTORY = "",
    relation: RELATION = None,
    rows_per_person: ROWS = 1,
    clients_per_person: CLIENTS = 1,
    figure: Annotated[str, typer.Option(metavar="FILE", help="Draw the curve: .svg, .png, .html, .json.")] = "",
    as_json: Json = False,
) -> None:
    """Tell what an attacker who must accuse somebody gains: how many of the used records are found, at most.

    From what was charged (--run, --ledger, --dataset) or a training (--sampling-rate, --noise-multiplier, --steps; or
    --history, as for epsilon), the whole trade-off curve is used. From --epsilon and --delta alone only the worst
    mechanism that keeps them can be told.
    """
    from fedprivacy.commands import risk_page as showing
    from fedprivacy.commands.calculator.trainings import AskingError, given, missing
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
            subjects = showing.of_run(run, person)
        elif charged:
            with opened_ledger(ledger) as opened:
                subjects = showing.of_ledger(opened, dataset, person)
        elif epsilon is None:
            trainings = given(**training, history=history, relation=relation, delta=delta)
            subjects = [showing.of_trainings(trainings, delta or 0.0, person)]
        elif delta is None:
            raise missing(delta=delta)
        else:
            subjects = [showing.of_budget(epsilon, delta)]
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
