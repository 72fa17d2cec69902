"""What it is worth to let every client choose its own budget: a third of thirty want epsilon 1, a third 3, a third 8.

With one budget for all it is the strictest: 1. With a table of terms each client adds the noise that its own budget
needs, and no more. But an average by shard size has the noise of the strictest all the same; weighed by the noise that
each adds, it has the least that an average can have. Nobody's epsilon depends on how updates are weighed.

    python simulations/personal_budgets.py    # a minute
"""

import fedprivacy as fp

CLIENTS = 30
BUDGETS = (1.0, 3.0, 8.0)
WANTED = {f"client-{number:02}": {"epsilon": BUDGETS[number % 3]} for number in range(CLIENTS)}
RUNS = {
    "the strictest budget for all": {"epsilon": min(BUDGETS)},
    "each its own, averaged by size": {"client_terms": WANTED},
    "each its own, averaged by noise": {"client_terms": WANTED, "weighting": "inverse-variance"},
}


def told(run: fp.Run) -> None:
    """What the clients of each budget added, and spent of it at most."""
    for budget in sorted({client["budget_epsilon"] for client in run.clients}):
        alike = [client for client in run.clients if client["budget_epsilon"] == budget]
        spent = max(client["epsilon"] for client in alike)
        noise = alike[0]["noise_multiplier"]
        print(f"    {len(alike)} clients of budget {budget:g}: noise multiplier {noise:.2f}, epsilon {spent:.2f} spent")


if __name__ == "__main__":
    for name, settings in RUNS.items():
        run = fp.simulate("digits", clients=CLIENTS, seed=0, **settings)
        print(f"{name}: accuracy {run.metrics['accuracy']:.1%}")
        told(run)
