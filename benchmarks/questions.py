"""What answers cost: from the tables in memory to the federation's figures, next to OpenDP.

    python -m benchmarks.questions [--json] [--clients 100] [--records 10000] [--turns 7]

Every client holds so many made-up records as columns of numpy arrays, numbers and texts. An answer begins with the
columns that are looked at and ends with the federation's figures: each client makes a table, sums and adds noise, the
totals are added up, figures are made. Times are medians of turns on one thread: processor time, and for ours wall time
too; ours and OpenDP's by turns in the same process, with the same privacy (rho = 1 / (2 sigma^2), one record more or
less), OpenDP's measurements made beforehand.

OpenDP's quantile is an exponential mechanism's among the same points. It has no answer of the federation: the median of
its clients' medians stands for one. `off` is how far a median is from that of all records, once where every client's
records are alike, and once where they are not; root mean square of turns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import opendp.prelude as opendp
import torch
from numpy.typing import NDArray

from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.questions.answers import Answers, Told
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.tasks.columns import Table
from fedprivacy.values.events import PoissonSampledGaussian

SIGMA = 4.0  # about epsilon 1 at delta 1e-5
LOW, HIGH, POINTS, BINS = 0.0, 120.0, 512, 24

ASKED: dict[str, tuple[Question, ...]] = {
    "median": (Questions.median("age", LOW, HIGH, POINTS),),
    "count": (Questions.count(),),
    "mean": (Questions.mean("age", LOW, HIGH),),
    "histogram": (Questions.histogram("age", LOW, HIGH, BINS),),
    "table one": Questions.table_one(
        {"age": (0, 120), "weight": (30, 200), "pressure": (60, 240), "sex": ["f", "m"], "stage": ["i", "ii", "iii"]},
        by={"arm": ["treated", "control"]},
    ),
    "covariance": (Questions.covariance({"age": (0, 120), "weight": (30, 200), "pressure": (60, 240)}),),
}
"""What is asked: a name, and questions that share one release."""

Columns = dict[str, NDArray[Any]]
Ask = Callable[[NDArray[np.float64]], Any]


def shards(clients: int, records: int, *, alike: bool = True) -> list[Columns]:
    """Made-up records of each client; where clients are not alike, every third one's people are young."""
    return [_shard(records, np.random.default_rng(n), 60.0 if alike or n % 3 else 25.0) for n in range(clients)]


def _shard(records: int, random: np.random.Generator, age: float) -> Columns:
    return {
        "age": random.normal(age, 8.0, records),
        "weight": random.normal(75.0, 15.0, records),
        "pressure": random.normal(130.0, 20.0, records),
        "sex": random.choice(["f", "m", ""], records, p=[0.5, 0.45, 0.05]),
        "stage": random.choice(["i", "ii", "iii"], records),
        "arm": random.choice(["treated", "control"], records),
    }


def answer(asked: Questionnaire, held: Sequence[Columns], turn: int) -> Answers:
    """Every client's answer: what is timed, but for the federation's figures."""
    mechanism = GaussianAnswers(PoissonSampledGaussian(1.0, SIGMA))
    sigmas, told = asked.noise_multipliers(SIGMA), {}
    for number, columns in enumerate(held):
        keystream = Keystream.from_seed(turn, f"client-{number}")
        table = Table({name: columns[name] for name in asked.columns or ["age"]})
        released = mechanism.release(asked, table, keystream, Position(1, 1))
        told[f"client-{number:04d}"] = [Told(*each) for each in zip(sigmas, released, strict=True)]
    return Answers(asked, told)


def peers(records: int) -> dict[str, Ask]:
    """OpenDP's measurement of one client's ages, for each question that it has one for."""
    rho = 1.0 / (2.0 * SIGMA**2)
    opendp.enable_features("contrib")
    numbers = (opendp.vector_domain(opendp.atom_domain(T=float, nan=False)), opendp.symmetric_distance())
    bounded = opendp.atom_domain(T=float, nan=False, bounds=(LOW, HIGH))
    sized = (opendp.vector_domain(bounded, size=records), opendp.symmetric_distance())
    edges = np.linspace(LOW, HIGH, BINS + 1)[1:-1].tolist()
    binned = (
        numbers
        >> opendp.t.then_find_bin(edges)
        >> opendp.t.then_count_by_categories(list(range(BINS)), null_category=False, MO=opendp.L2Distance[int])
    )

    def chosen(scale: float) -> Any:
        points = np.linspace(LOW, HIGH, POINTS + 1)[1:-1].tolist()
        divergence = opendp.zero_concentrated_divergence()
        return opendp.m.make_private_quantile(*numbers, divergence, candidates=points, alpha=0.5, scale=scale)

    def gaussian(query: Any, records_changed: int) -> Any:
        return opendp.binary_search_chain(
            lambda scale: query >> opendp.m.then_gaussian(scale), d_in=records_changed, d_out=rho, T=float
        )

    mean = gaussian(sized >> opendp.t.then_mean(), 2)  # one record is replaced: their number is public
    return {
        "median": opendp.binary_search_chain(chosen, d_in=1, d_out=rho),
        "count": gaussian(numbers >> opendp.t.then_count(), 1),
        "mean": lambda ages: mean(ages.clip(LOW, HIGH)),
        "histogram": gaussian(binned, 1),
    }


def _seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Processor time, and wall time."""
    start, began = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - start, time.perf_counter() - began


def costs(clients: int, records: int, turns: int) -> dict[str, dict[str, float]]:
    """Seconds for all clients, by question, and OpenDP's over ours where it has an offer."""
    held, theirs = shards(clients, records), peers(records)
    found = {}
    for name, questions in ASKED.items():
        asked, peer = Questionnaire(questions), theirs.get(name)
        ours: list[tuple[float, float]] = []
        others: list[float] = []
        for turn in range(turns + 1):  # the first one warms up
            ours.append(_seconds(partial(_figures, asked, held, turn)))
            if peer:
                others.append(_seconds(partial(_each, peer, held))[0])
        spent, wall = zip(*ours[1:], strict=True)
        found[name] = {"ours_s": statistics.median(spent), "ours_wall_s": statistics.median(wall)}
        if peer:
            ratios = [b / a for a, b in zip(spent, others[1:], strict=True)]
            found[name] |= {"opendp_s": statistics.median(others[1:]), "opendp_over_ours": statistics.median(ratios)}
    return found


def _figures(asked: Questionnaire, held: Sequence[Columns], turn: int) -> object:
    return answer(asked, held, turn).federation


def _each(measure: Ask, held: Sequence[Columns]) -> object:
    return [measure(columns["age"]) for columns in held]


def errors(clients: int, records: int, turns: int) -> dict[str, dict[str, float]]:
    """How far medians are off, in years, of clients that are alike and of such that are not."""
    median, found = peers(records)["median"], {}
    for name, alike in (("alike", True), ("different", False)):
        held = shards(clients, records, alike=alike)
        truth = float(np.median(np.concatenate([columns["age"].clip(LOW, HIGH) for columns in held])))
        asked = Questionnaire(ASKED["median"])
        answers = [answer(asked, held, turn).figures() for turn in range(turns)]
        ours = [figures[1].value - truth for figures in answers if figures[1].value is not None]
        theirs = [statistics.median(median(columns["age"]) for columns in held) - truth for _ in range(turns)]
        found[name] = {"ours_off": _root_mean_square(ours), "opendp_off": _root_mean_square(theirs)} | {
            "ours_stated": statistics.mean(figures[1].error or 0.0 for figures in answers)
        }
    return found


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))


def main() -> None:
    """Measure, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = options.clients, options.records, options.turns
    measured, off = costs(*sizes), errors(*sizes)
    if options.json:
        print(json.dumps({"clients": options.clients, "records": options.records, "seconds": measured, "median": off}))
        return
    print(f"{options.clients} clients with {options.records:,d} records each, on one thread:")
    print("question        ours, s  wall, s   OpenDP, s   OpenDP / ours")
    for name, cost in measured.items():
        theirs = f"{cost['opendp_s']:11.3f} {cost['opendp_over_ours']:15.1f}" if "opendp_s" in cost else "-".rjust(11)
        print(f"{name:12s} {cost['ours_s']:10.3f} {cost['ours_wall_s']:8.3f} {theirs}")
    for name, each in off.items():
        print(f"median off, clients {name}: ours {each['ours_off']:.4f}, OpenDP's {each['opendp_off']:.4f} years")


if __name__ == "__main__":
    main()
