"""The cost of stragglers, in time or in privacy: rounds that wait for everybody, or that ask more.

Fifty hospitals, of which some compute ten times as slowly as others, and one in twenty goes away. Over-selection
(Bonawitz et al. 2019) asks fifteen and averages the first ten answers. The clock is simulated, the privacy is not:
whoever was asked has spent a round, also when nobody waited for the update.

    python simulations/stragglers.py          # a minute; writes stragglers.png
"""

import altair as alt

import fedprivacy as fp

TARGET = 0.8  # accuracy
ALIKE = {"clients": 50, "rounds": 60, "noise_multiplier": 2.0, "seed": 0}
SLOW = {"speeds": "lognormal:1:60", "drop_out": 0.05}  # a minute for a local step, for the median
RUNS = {
    "waits for all 10": {"cohort_size": 10},
    "asks 15, averages the first 10": {"cohort_size": 10, "over_selection": 1.5},
}


def reached(run: fp.Run) -> str:
    """When the accuracy was reached, by the simulated clock."""
    first = next((row for row in run.rounds if row["accuracy"] >= TARGET), None)
    return f"round {first['round']}, after {first['clock'] / 3600:.1f} hours" if first else "never"


def figure(runs: dict[str, fp.Run]) -> alt.Chart:
    """Accuracy against simulated time."""
    rows = [
        {"run": name, "hours": row["clock"] / 3600, "accuracy": row["accuracy"]}
        for name, run in runs.items()
        for row in run.rounds
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("hours:Q", title="simulated hours"),
            y=alt.Y("accuracy:Q", title="accuracy"),
            color=alt.Color("run:N", title=None),
        )
        .properties(width=520, height=280, title="The same rounds, with and without waiting for the slowest")
    )


if __name__ == "__main__":
    runs = {name: fp.simulate("digits", **ALIKE, **SLOW, **more) for name, more in RUNS.items()}
    for name, run in runs.items():
        spent = [client["epsilon"] for client in run.clients]
        hours = run.rounds[-1]["clock"] / 3600
        print(f"{name}: accuracy {TARGET:.0%} in {reached(run)}; {len(run.rounds)} rounds in {hours:.1f} hours;")
        print(f"    epsilon {sum(spent) / len(spent):.2f} on average, {max(spent):.2f} at most")
    figure(runs).save("stragglers.png")
