"""Ask simulated clients about their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower import private_client
from fedprivacy.flower.server.ask_clients import AskResult, ask_clients
from fedprivacy.flower.simulated.engine import drive
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.runs.settings.configuration import LEDGER, RUNS, ConfigError, Value, simulation_settings
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords
from fedprivacy.server.app import record_answers
from fedprivacy.simulation.preconditions import check_asking
from fedprivacy.tasks import Task
from fedprivacy.tasks.identity import DEFAULT_TASK
from fedprivacy.tasks.loader import OBJECT


class Ask(Questions):
    """Asks simulated clients about their records: `fp.ask(task, question, ...)`; its methods make the questions.

    >>> import fedprivacy as fp
    >>> asked = fp.ask("cancer", fp.ask.mean("mean radius", 0, 30), clients=3, spend=0.5)
    >>> 10 < asked.value("mean of mean radius") < 18
    True
    """

    def __call__(
        self,
        task: GivenTask = None,
        *questions: Question | Sequence[Question],
        shares: Sequence[float] = (),
        anew: bool = False,
        **settings: Given,
    ) -> AskResult:
        """Ask every client of a simulation, each within its privacy budget, or read what it answered before.

        All questions are one release, charged once. What was asked before on the same ledger is read again, and costs
        nothing, unless it is asked anew.

        Formal guarantee: see `fedprivacy.runs.accountant` and `fedprivacy.questions.release.GaussianAnswers`.

        >>> import fedprivacy as fp
        >>> asked = fp.ask("cancer", fp.ask.count(by={"diagnosis": ["malignant", "benign"]}), clients=3, spend=0.5)
        >>> sorted(row["group"] for row in asked.federation)
        ['benign', 'malignant']
        >>> fp.ask("cancer", fp.ask.count(by={"diagnosis": ["malignant", "benign"]}), clients=3).reread
        ('client-0', 'client-1', 'client-2')

        Args:
            task: as `simulate` takes it; it has a `table`.
            questions: at least one, made by the methods of `fp.ask`.
            shares: of the privacy loss, one for each question; none: equal ones.
            anew: whether clients that have answered these questions before are asked, and charged, again.
            settings: of the run: `clients`, `epsilon` and `delta` (the budget over all runs), `client_terms` (those of
                some clients' own), `spend` (how much of it the questions take; left open: 0.1) or `noise_multiplier`,
                `filter`, `seed`, `ledger` (left open: one in runs/TASK-questions), `out`, `signing_key`.

        Raises:
            ConfigError: lists everything that is wrong with the settings, or with a question. Nothing has been spent.
            BudgetSpentError: no client's budget allows the answer.
            LedgerError: the ledger contradicts the run, or cannot be written.
        """
        with spelt_as_keywords():
            several = (each if isinstance(each, list | tuple) else (each,) for each in questions)
            asked = questionnaire(chain.from_iterable(several), shares)
            given, own = by_key(task, settings)
            return ask_simulation(simulation_plan(given, own), asked, anew=anew)


ask = Ask()
"""The function `fedprivacy.ask`, with its methods."""


def questionnaire(questions: Iterable[Question], shares: Sequence[float] = ()) -> Questionnaire:
    """Questions that are asked together.

    Raises:
        ConfigError: one cannot be read, while they are iterated over, or they cannot be asked together.
    """
    try:
        return Questionnaire(tuple(questions), tuple(shares))
    except QuestionError as error:
        raise ConfigError([str(error)]) from error


def simulation_plan(given: Mapping[str, Value | None], task: Task | None = None) -> QuestionPlan:
    """The plan of a simulation that asks; its ledger is the same for every one of a task, unless another is named.

    Raises:
        ConfigError: lists everything that is wrong with the settings.
    """
    settings = simulation_settings(given, task)
    file = Path(str(settings.get("task", DEFAULT_TASK))).name
    name = task.name if task else file.partition(":")[0].removesuffix(".py")
    out = Path(str(settings.setdefault("out", str(Path(RUNS) / f"{name}-questions"))))
    if not settings.get("ledger"):
        out.mkdir(parents=True, exist_ok=True)
        settings["ledger"] = str(out / LEDGER)
    return QuestionPlan.of(settings, task)


def ask_simulation(plan: QuestionPlan, asked: Questionnaire, *, anew: bool = False) -> AskResult:
    """Ask simulated clients, once the first one's table is known to have the columns. Raises what `Ask` does."""
    check_asking(plan, asked.columns)
    own = plan.task if plan.config.task.startswith(OBJECT) else None
    outcomes: list[AskResult] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        outcomes.append(ask_clients(grid, plan, asked, anew=anew))

    drive(server, private_client(own, plan.config), plan.config)
    (done,) = outcomes
    record_answers(done, plan)
    return done
