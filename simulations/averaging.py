"""Ask the same question a thousand times: the oldest attack on noise, and what stops it.

A hospital answers how many of its patients have a malignant tumour, each time with fresh noise, and every answer alone
costs little. Nobody who counts the answers is fooled; whoever lets each of them begin a new account is.

    python simulations/averaging.py          # two minutes; writes averaging.png
"""

import math
import sys
from pathlib import Path

import altair as alt

import fedprivacy as fp

TIMES = 1000
SIGMA = 10.0  # of the noise, in patients
DELTA = 1e-5
BUDGET = 1.0
SEED = 0  # so that everybody sees the same answers; on records that are private, leave it out
MALIGNANT = fp.ask.count(where={"diagnosis": "malignant"})


def true_count() -> int:
    """What the hospital alone knows."""
    table = fp.tasks.Cancer().table(fp.ShardSource(partition_id=0, num_partitions=1))
    return int((table.codes("diagnosis", ["malignant"]) == 0).sum())


def ask_again_and_again(times: int, budget: float, ledger: str) -> tuple[list[float], float]:
    """Answers until nobody asks any more, or the ledger refuses; and what they cost altogether."""
    answers, epsilon = [], 0.0
    for _ in range(times):
        try:
            asked = fp.ask(
                fp.tasks.Cancer(),
                MALIGNANT,
                clients=1,
                noise_multiplier=SIGMA,
                epsilon=budget,
                delta=DELTA,
                ledger=ledger,
                seed=SEED,
                anew=True,
            )
        except Exception as refusal:
            print(f"Refused after {len(answers)} answers: {refusal}\n")
            break
        answers.append(asked.value("count"))
        epsilon = asked.spent["client-0"].epsilon
    return answers, epsilon


def running_means(answers: list[float]) -> list[float]:
    """What the attacker believes after each answer."""
    return [sum(answers[: n + 1]) / (n + 1) for n in range(len(answers))]


def figure(truth: int, without: list[float], within: list[float]) -> alt.LayerChart:
    """The attacker's belief after each answer, with and without a budget."""
    rows = [{"answers": n + 1, "mean": mean, "account": "nobody refuses"} for n, mean in enumerate(without)]
    rows += [{"answers": n + 1, "mean": mean, "account": f"budget {BUDGET:g}"} for n, mean in enumerate(within)]
    belief = (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("answers:Q", scale=alt.Scale(type="log"), title="answers averaged"),
            y=alt.Y("mean:Q", scale=alt.Scale(domain=[truth - 15, truth + 15], clamp=True), title="patients"),
            color=alt.Color("account:N", title=None),
        )
    )
    rule = alt.Chart(alt.Data(values=[{"truth": truth}])).mark_rule(strokeDash=[4, 4]).encode(y="truth:Q")
    return (belief + rule).properties(width=520, height=280, title="The mean of noisy answers, and the truth (dashed)")


if __name__ == "__main__":
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    truth, alone = true_count(), fp.epsilon(noise_multiplier=SIGMA, delta=DELTA, sampling_rate=1.0, steps=1)
    without, cost = ask_again_and_again(times, math.inf, "averaging-without-budget.db")
    within, spent = ask_again_and_again(times, BUDGET, "averaging-with-budget.db")
    figure(truth, running_means(without), running_means(within)).save("averaging.png", scale_factor=2)
    print(f"The truth: {truth} patients. One answer: {without[0]:.0f}, at epsilon {alone:.2f} alone.")
    print(f"{times} answers, nobody refuses: {running_means(without)[-1]:.2f} on average. If every answer begins a new")
    print(f"account, epsilon is still said to be {alone:.2f}; composed, it is {cost:.1f}.")
    print(
        f"With a budget of {BUDGET:g}: {len(within)} answers, {running_means(within)[-1]:.2f} on average, epsilon "
        f"{spent:.2f}; then no more."
    )
    print(
        f"To ask once costs once: an answer that was paid for is kept, and free to read again. {Path('averaging.png')}"
    )
