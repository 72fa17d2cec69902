"""Ask before you train: Table 1, standardisation and a model, out of one epsilon.

Six hospitals want to predict who comes back within a month. Before they train they want to know whom they have, and at
which scale; every answer is a release, and is paid for out of the budget that training uses. The patients are made up.

    python simulations/hospitals.py
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import torch

import fedprivacy as fp

HOSPITALS, PATIENTS, SEEDS = 6, 400, 5
BOUNDS = {"age": (18, 110), "systolic": (60, 260), "creatinine": (0, 500), "stay": (0, 40)}  # any textbook
PUBLIC = {
    "age": (64, 15),
    "systolic": (130, 20),
    "creatinine": (90, 40),
    "stay": (6, 5),
}  # centre and scale, by a guess
BUDGET = {"epsilon": 2.0, "delta": 1e-4, "clients": HOSPITALS}


def patients(hospital: int, count: int = PATIENTS) -> dict[str, np.ndarray]:
    """The records of one hospital; each has a mix of its own."""
    random = np.random.default_rng([hospital, 7])
    age = random.normal(58 + 3 * (hospital % HOSPITALS), 14, count).clip(18, 100)
    creatinine = random.lognormal(4.3 + 0.01 * (age - 60), 0.4, count)
    stay = random.gamma(2.0, 2.0 + age / 40, count)
    systolic = random.normal(128, 18, count)
    risk = 0.06 * (age - 60) + 0.02 * (creatinine - 90) + 0.25 * (stay - 7) + 0.02 * (systolic - 128)
    returned = random.random(count) < 1 / (1 + np.exp(-risk))
    sex = random.choice(["f", "m"], count)
    columns = {"age": age, "systolic": systolic, "creatinine": creatinine, "stay": stay}
    return columns | {"sex": sex, "returned": returned.astype(np.int64)}


class Returns(fp.Task):
    """Who comes back: logistic regression on four numbers, as they are."""

    dataset = "patients"
    recipe = fp.Recipe(rounds=15, local_steps=2, sampling_rate=0.3, clipping_norm=1.0, learning_rate=0.8, **BUDGET)

    def model(self) -> torch.nn.Module:
        """Logistic regression."""
        return torch.nn.Linear(len(BOUNDS), 2)

    def table(self, source: fp.ShardSource) -> fp.Table:
        """What questions are asked of."""
        return fp.Table(patients(source.partition_id))

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """What the model learns from: the same patients, in the same order."""
        return self.examples(patients(source.partition_id))

    def examples(self, columns: dict[str, np.ndarray]) -> fp.Shard:
        """Inputs and targets."""
        inputs = np.stack([columns[name] for name in BOUNDS], axis=1)
        return fp.Shard(torch.tensor(inputs, dtype=torch.float32), torch.tensor(columns["returned"]))

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """Accuracy on patients whose records are public."""
        test = self.examples(patients(99, 4000))
        return {"accuracy": (model(test.inputs).argmax(1) == test.targets).double().mean().item()}

    def partition(self, num_partitions: int) -> str:
        """Each client is a hospital."""
        return f"{num_partitions} hospitals"


class ByPublicConstants(Returns):
    """The same, at a scale that somebody guessed."""

    def examples(self, columns: dict[str, np.ndarray]) -> fp.Shard:
        """Inputs in guessed units."""
        return super().examples(columns | {name: (columns[name] - c) / s for name, (c, s) in PUBLIC.items()})


class ByAPrivateAnswer(Returns):
    """The same, at the scale that the patients have, as far as a private answer tells it."""

    standardise = fp.ask.mean_and_scale(BOUNDS)


CHOICES = {
    "no standardisation": Returns(),
    "by public constants": ByPublicConstants(),
    "by a private answer": ByAPrivateAnswer(),
}


def table_one(ledger: Path) -> None:
    """Ask for Table 1, and print it."""
    variables = {"age": BOUNDS["age"], "stay": BOUNDS["stay"], "sex": ["f", "m"]}
    table = fp.ask.table_one(variables, by={"returned": [0, 1]})
    asked = fp.ask(ByAPrivateAnswer(), *table, ledger=ledger, spend=0.3)
    print("Table 1, for all hospitals together (the standard error is that of the noise)")
    for row in asked.federation:
        group = "came back" if row["group"] == "1" else "stayed away"
        if row["value"] is not None:
            print(f"  {group:12} {row['figure']:28} {row['value']:9.1f}  +- {row['error']:.1f}")
    worst = max(asked.spent.values(), key=lambda client: client.epsilon)
    print(f"  It cost {worst.client_id} epsilon {worst.epsilon:.2f}; nobody more.\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.db"
        table_one(ledger)
        run = fp.simulate(ByAPrivateAnswer(), ledger=ledger, out=Path(folder) / "run", progress=False)
        account = max(run.clients, key=lambda client: client["epsilon"])
        print(f"Table 1, standardisation and training: epsilon {account['epsilon']:.2f} of {BUDGET['epsilon']:g}, one")
        print(f"account. Accuracy {run.metrics['accuracy']:.3f}. With all of the budget for the training:")
        for words, task in CHOICES.items():
            folders = [Path(folder) / f"{words} {seed}" for seed in range(SEEDS)]
            runs = [fp.simulate(task, seed=n, out=out, progress=False) for n, out in enumerate(folders)]
            accuracies = [run.metrics["accuracy"] for run in runs]
            error = np.std(accuracies) / math.sqrt(SEEDS)
            print(f"  {words:24} accuracy {np.mean(accuracies):.3f} +- {error:.3f} over {SEEDS} seeds")
