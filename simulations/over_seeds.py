"""Is it worth it to train together? Four hospitals with biopsies of breast cancer, alone and together, over five seeds.

One run is one draw of noise, and a difference between two runs may be nothing but that. A reproduction measures its
rows with several seeds, and prints mean, standard error and a verdict on what was claimed beforehand: here, that within
epsilon 1 the hospitals diagnose better together. What was measured is kept: to stop it and to go on costs nothing.

    python -m simulations.over_seeds                                       # a minute
    python -m simulations.reproduce simulations/over_seeds.py:Together     # the same, on all cores
"""

import fedprivacy as fp
from simulations.reproduce import Measured, Row, reproduce

HOSPITALS, EPSILON = 4, 1.0
ALGORITHMS = {"together": "fedavg", "alone": "local"}


class Together:
    """Accuracy on public biopsies, of one model for all, and of each hospital's own."""

    name = "together"
    title = "Biopsies, four hospitals, epsilon 1"
    source = "The claim of this script"
    delta = 1e-3
    seeds = 5
    data = {}  # file: where to get it
    settings = {"hospitals": HOSPITALS, "epsilon": EPSILON}  # results of other settings are refused
    rows = (
        Row("together", "accuracy on public biopsies", goal=0.9),
        Row("alone", "accuracy on public biopsies, mean of four models"),
    )

    def measure(self, seed, place):
        """A federation, and hospitals that train alone."""
        for row, algorithm in ALGORITHMS.items():
            place.tell(row)
            run = fp.simulate(
                "cancer",
                clients=HOSPITALS,
                epsilon=EPSILON,
                delta=self.delta,
                algorithm=algorithm,
                seed=seed,
                out=place.runs / row,
                progress=False,
            )
            owners = [client["client_id"] for client in run.clients] if row == "alone" else [None]  # None: of all
            accuracies = [fp.tasks.Cancer().evaluate(run.model(client_id=owner))["accuracy"] for owner in owners]
            accuracy, spent = sum(accuracies) / len(owners), max(client["epsilon"] for client in run.clients)
            yield row, Measured(accuracy, spent, run.metrics)


if __name__ == "__main__":
    results = reproduce(Together())
    for row in results.table:
        print(f"{row['name']:10} {row['mean']:.3f} +- {row['standard_error']:.3f}, epsilon {row['epsilon']:.2f}")
