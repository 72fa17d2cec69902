"""Ask simulated clients about their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower import BudgetSpentError, private_client
from fedprivacy.flower.server.ask_clients import AskResult, InTurn, ask_clients
from fedprivacy.flower.simulated.engine import drive
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import Where, conditions
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.frequent import Frequent, Search, frequent
from fedprivacy.questions.grammar import typed
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.runs.plans.question_plan import question_plan
from fedprivacy.runs.settings.configuration import LEDGER, RUNS, ConfigError, Value, of_simulation
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords
from fedprivacy.server.question_run import record
from fedprivacy.simulation.preconditions import check_asking
from fedprivacy.tasks import Task
from fedprivacy.tasks.built_in import DEFAULT_TASK
from fedprivacy.tasks.loader import OBJECT

Questioned = Question | Sequence[Question] | str
"""A question, several, or some as people type them."""

Outcome = TypeVar("Outcome")
"""Result of a conversation with clients."""


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
        *questions: Questioned,
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
            questions: at least one, as objects or as `fedprivacy ask` takes them.
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
            asked = questionnaire(questions, shares)
            given, own = by_key(task, settings)
            return asked_of_simulation(prepared(given, own), asked, anew=anew)

    def frequent(
        self,
        task: GivenTask,
        column: str,
        *,
        alphabet: str,
        length: int,
        most: int = 20,
        where: Where = None,
        anew: bool = False,
        **settings: Given,
    ) -> Frequent[AskResult]:
        """The most frequent texts of a column, such as diagnoses or medicines, that nobody has to list.

        Texts are followed a character at a time, as far as they stand out of the noise of all clients' answers
        together, see `fedprivacy.questions.frequent`. Each character is a question: asked, charged, kept and read again
        as any other. The spend is divided over `length` of them beforehand, with equal noise, and those that turn out
        not to be needed are not charged. To find again what was found costs nothing.

        Formal guarantee: as of asking; the texts that are looked for are public, so no delta is spent on them.

        >>> import fedprivacy as fp
        >>> settings = {"clients": 3, "spend": 2.0, "epsilon": 4.0}
        >>> found = fp.ask.frequent("cancer", "diagnosis", alphabet="abegilmnt", length=9, **settings)
        >>> [row["text"] for row in found.texts]
        ['benign', 'malignant']
        >>> found.by_depth[0]["texts"], found.by_depth[0]["beginnings"], 10 < found.surely < 100
        (0, 2, True)

        Args:
            task: as `simulate` takes it; it has a `table`.
            column: of texts; each is read without blanks around, and capitals count.
            alphabet: all characters that may be in them, as one text; blanks, too, if there are any within.
            length: up to which character texts are followed.
            most: how many texts are told.
            where: conditions that a record must meet, as of every question.
            anew: whether clients that have answered these questions before are asked, and charged, again.
            settings: of the run, as above; with `noise_multiplier` instead of `spend`, that of every question.

        Returns:
            What was found, and what could have been. If the budget ends before the first question, the error below is
            raised; later, what was found until then is returned, and `stopped` says why.

        Raises:
            ConfigError: lists everything that is wrong with the settings, or with what is looked for.
            BudgetSpentError: no client's budget allows an answer.
            LedgerError: the ledger contradicts the run, or cannot be written.
        """
        with spelt_as_keywords():
            try:
                search = Search(column=column, alphabet=alphabet, length=length, most=most, where=conditions(where))
            except QuestionError as error:
                raise ConfigError([str(error)]) from error
            given, own = by_key(task, settings)
            return frequent_in_simulation(prepared(given, own), search, anew=anew)


ask = Ask()
"""The function `fedprivacy.ask`, with its methods."""


def questionnaire(
    questions: Iterable[Question | Sequence[Question] | str], shares: Sequence[float] = ()
) -> Questionnaire:
    """Questions as people give them.

    Raises:
        ConfigError: one cannot be read, or they cannot be asked together.
    """
    try:
        return Questionnaire(tuple(q for each in questions for q in _made(each)), tuple(shares))
    except QuestionError as error:
        raise ConfigError([str(error)]) from error


def _made(given: Questioned) -> Sequence[Question]:
    if isinstance(given, str):
        return typed(given)
    return (given,) if isinstance(given, Question) else given


def prepared(given: Mapping[str, Value | None], task: Task | None = None) -> QuestionPlan:
    """The plan of a simulation that asks; its ledger is the same for every one of a task, unless another is named.

    Raises:
        ConfigError: lists everything that is wrong with the settings.
    """
    settings = of_simulation(given, task)
    file = Path(str(settings.get("task", DEFAULT_TASK))).name
    name = task.name if task else file.partition(":")[0].removesuffix(".py")
    out = Path(str(settings.setdefault("out", str(Path(RUNS) / f"{name}-questions"))))
    if not settings.get("ledger"):
        out.mkdir(parents=True, exist_ok=True)
        settings["ledger"] = str(out / LEDGER)
    return question_plan(settings, task)


def asked_of_simulation(plan: QuestionPlan, asked: Questionnaire, *, anew: bool = False) -> AskResult:
    """Ask simulated clients. Raises what `Ask` does."""
    done = _simulated(plan, asked.columns, lambda grid: ask_clients(grid, plan, asked, anew=anew))
    record(done, plan)
    return done


def frequent_in_simulation(plan: QuestionPlan, search: Search, *, anew: bool = False) -> Frequent[AskResult]:
    """Look for frequent texts among simulated clients. Raises what `Ask.frequent` does."""
    columns = search.question().columns
    found = _simulated(plan, columns, lambda grid: frequent_among(grid, plan, search, anew=anew))
    for depth, done in zip(found.depths, found.answers, strict=False):
        record(done, plan, [*depth.texts.values(), *depth.beginnings.values()])
    return found


def frequent_among(grid: Grid, plan: QuestionPlan, search: Search, *, anew: bool = False) -> Frequent[AskResult]:
    """Look for frequent texts among a grid's clients. Raises what `Ask.frequent` does."""
    return frequent(search, InTurn(grid, plan, search.length, anew=anew).ask, stops=(BudgetSpentError,))


def _simulated(plan: QuestionPlan, columns: Collection[str], talk: Callable[[Grid], Outcome]) -> Outcome:
    """Talk to simulated clients, once the first one's table is known to have these columns."""
    check_asking(plan, columns)
    own = plan.task if plan.config.task.startswith(OBJECT) else None
    outcomes: list[Outcome] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        outcomes.append(talk(grid))

    drive(server, private_client(own, plan.config), plan.config)
    return outcomes[0]
