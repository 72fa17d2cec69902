"""What attacks find: members, memorised canaries, and a digit in an update; without privacy and with it.

    python -m benchmarks.attacks [--json] [--scale 1] [--data ../shared/data] [--out runs/attacks]

Membership: Location-30 (5,010 people's visits to 446 places, 30 classes), a network with one hidden layer of 128 units
as in Shokri et al. (2017), 65 models on random halves of the records of which 8 are attacked, trained alike with
and without clipping and noise. Exposure: 100 canaries inserted, among 1,000 that are not. Inversion: a client with
one digit of MNIST and a network with 128 hidden units sends one step. `--scale` multiplies the number of models;
figures are written to `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from benchmarks.attacks.archives import Archive, Locations, inversion
from benchmarks.attacks.exposure import LEARNED_NOTHING, exposed
from benchmarks.attacks.figures import AttackCurve, Picture, picture_figure, roc_figure
from benchmarks.attacks.inversion import Inverted
from benchmarks.attacks.limits import DELTA, breaches
from benchmarks.attacks.membership import attacked
from benchmarks.attacks.roc import Roc
from benchmarks.attacks.shadows import train_shadows
from benchmarks.attacks.trainers import Trainer, Training, WithoutPrivacy, WithPrivacy
from fedprivacy.accounting.risk import Risk
from fedprivacy.figures import save_png, to_svg
from fedprivacy.tasks import Shard
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History

EPSILONS = (1.0, 3.0, 8.0)
CLIPPING_NORM = 0.5
WITHOUT = "no privacy"
RATES = (0.001, 0.01, 0.1)
"""False positive rates of the table."""

_GRID: NDArray[np.float64] = np.logspace(-3.0, 0.0, 301)


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """What attacks found in models that were trained alike.

    Attributes:
        name: of the training.
        accuracy: share of right classes, on the members and on the others.
        rocs: of each attack, by its name.
        models: how many were trained.
        targets: how many of them were attacked.
        exposure: mean over the canaries, in bits.
        history: what one training executes; None: no privacy.
        seconds: what it took.
    """

    name: str
    accuracy: tuple[float, float]
    rocs: Mapping[str, Roc]
    models: int
    targets: int
    exposure: float
    history: History | None
    seconds: float

    def limit(self, rates: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The largest true positive rates that the training allows; None: it promises nothing."""
        return None if self.history is None else Risk.of_history(self.history, DELTA).found(rates)


def measured(task: Archive, name: str, trainer: Trainer, history: History | None, scale: float) -> Attacked:
    """Attack models of one training."""
    start = time.perf_counter()
    models, targets = max(8, round(64 * scale)) + 1, max(2, round(8 * scale))
    shadows = train_shadows(task, task.records, trainer, models=models, seed=0)
    found = attacked(shadows, task.records, targets=targets)
    bits = exposed(task, task.records, trainer, inserted=100, candidates=1000, seed=0)
    accuracy = _accuracy(task, trainer, shadows.members[0])
    seconds = time.perf_counter() - start
    return Attacked(name, accuracy, found, models, targets, float(bits.mean()), history, seconds)


def _accuracy(task: Archive, trainer: Trainer, members: NDArray[np.bool_]) -> tuple[float, float]:
    inputs, targets = task.records.inputs, task.records.targets
    inside = torch.from_numpy(members)
    model = trainer(Shard(inputs[inside], targets[inside]), 0)
    with torch.no_grad():
        right = (model(inputs).argmax(1) == targets).double()
    return right[inside].mean().item(), right[~inside].mean().item()


def membership(data: Path, scale: float) -> list[Attacked]:
    """Without privacy, and at each of `EPSILONS`."""
    task = Locations(data / "location30.npz", 1.0)
    rate, half = 0.5, len(task.records) / 2
    training = Training(steps=100, sampling_rate=rate, batch_size=rate * half, learning_rate=0.01)
    found = [measured(task, WITHOUT, WithoutPrivacy(task, training), None, scale)]
    for epsilon in EPSILONS:
        trainer = WithPrivacy(task, training, PrivacyBudget(epsilon, DELTA), CLIPPING_NORM)
        found.append(measured(task, f"ε = {epsilon:g}", trainer, trainer.history, scale))
    return found


def main() -> None:
    """Attack, draw, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    options = parser.parse_args()
    for name in ("location30.npz", "mnist.npz"):
        if not (options.data / name).exists():
            parser.error(f"{options.data / name} is missing; name the folder that holds it by --data.")
    found = membership(options.data, options.scale)
    noise = _noise(found[-1])
    pictures = inversion(options.data, noise)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, pictures, noise, options.out)
    if options.json:
        plain = {"membership": [_plain(each) for each in found], "noise_multiplier": noise}
        print(json.dumps(plain | {"psnr_db": dict(zip(("without", "with"), (p.psnr for p in pictures), strict=True))}))
        return
    for each in found:
        _print(each)
    psnr = "{:.1f} dB without noise, {:.1f} dB with noise multiplier {:.2f}".format(*(p.psnr for p in pictures), noise)
    print(f"gradient inversion of one digit: PSNR {psnr}")
    print(f"figures: {options.out}")


def _noise(private: Attacked) -> float:
    (event,) = private.history or {}
    return float(getattr(event, "noise_multiplier"))  # noqa: B009 - of all events, a Poisson-sampled Gaussian


def _plain(found: Attacked) -> dict[str, Any]:
    limits = found.limit(RATES)
    return {
        "training": found.name,
        "models": found.models,
        "models_attacked": found.targets,
        "accuracy_members": found.accuracy[0],
        "accuracy_others": found.accuracy[1],
        "exposure_bits": found.exposure,
        "seconds": found.seconds,
        "attacks": {
            name: {"auc": roc.area} | {_key(rate): _rate(roc, rate) for rate in RATES}
            for name, roc in found.rocs.items()
        },
        "above": above(found),
        "breached": breached(found),
        "auc_allowed": area_allowed(found),
        "limits": {} if limits is None else dict(zip(map(_key, RATES), limits, strict=True)),
    }


def _key(rate: float) -> str:
    return f"tpr_at_{rate:g}"


def _rate(roc: Roc, rate: float) -> dict[str, float]:
    at = roc.at(rate)
    return {"tpr": at.true_positive_rate, "low": at.low, "high": at.high}


def breached(found: Attacked) -> list[str]:
    """The attacks that found more members than privacy allows, beyond chance."""
    return [] if found.history is None else [name for name, roc in found.rocs.items() if breaches(roc, found.history)]


def above(found: Attacked) -> list[str]:
    """The attacks that found more at some false positive rate from 0.1 % on, be it by chance."""
    limits = found.limit(_GRID)
    if limits is None:
        return []
    curves = {name: [roc.at(rate).true_positive_rate for rate in _GRID] for name, roc in found.rocs.items()}
    return [name for name, curve in curves.items() if (np.array(curve) > limits).any()]


def area_allowed(found: Attacked) -> float:
    """The area under the curve that privacy allows; without it, 1."""
    rates = np.linspace(0.0, 1.0, 2001)
    limits = found.limit(rates)
    return 1.0 if limits is None else float(trapezoid(limits, rates))


def strongest(found: Attacked) -> tuple[str, Roc]:
    """The attack with the largest area under its curve."""
    return max(found.rocs.items(), key=lambda item: item[1].area)


def _print(found: Attacked) -> None:
    inside, outside = found.accuracy
    print(f"{found.name}: accuracy {inside:.1%} on members, {outside:.1%} on others; {found.seconds:.0f} s")
    print("  attack                 AUC   members found at 0.1 % false alarms      at 1 %")
    for name, roc in found.rocs.items():
        few, more = roc.at(0.001), roc.at(0.01)
        shown = f"{few.true_positive_rate:8.2%} [{few.low:.2%}, {few.high:.2%}]"
        print(f"  {name:20s} {roc.area:6.3f} {shown:>32s} {more.true_positive_rate:16.2%}")
    limits = found.limit(RATES)
    if limits is not None:
        print(f"  {'privacy allows':20s} {area_allowed(found):6.3f} {limits[0]:15.2%} {limits[1]:33.2%}")
        beyond = ", ".join(breached(found)) or "none"
        print(f"  curves above that: {', '.join(above(found)) or 'none'}; beyond chance: {beyond}")
    print(f"  exposure of canaries: {found.exposure:.2f} bits on average; {LEARNED_NOTHING:.2f} is chance")


def draw(found: Sequence[Attacked], pictures: tuple[Inverted, Inverted], noise: float, out: Path) -> None:
    """Write the three figures."""
    without, *private = found
    models = f"{without.models} models on random halves of the records"
    about = ["Location-30", models, f"{without.targets} of them attacked in turn"]
    most = percent(strongest(without)[1].at(0.001).true_positive_rate)
    title = f"Without privacy, an attack finds {most} of the members with {percent(0.001)} false alarms"
    attacks = [_curve(name, roc) for name, roc in without.rocs.items()]
    (out / "membership-without-privacy.svg").write_text(to_svg(roc_figure(attacks, title, about)))
    curves = []
    for each in private:
        name, roc = strongest(each)
        curves.append(_curve(f"{each.name}, {name}", roc, each.limit(_GRID)))
    title = "With privacy, no attack finds more members than ε allows"
    if any(map(breached, private)):
        title = "AN ATTACK FOUND MORE MEMBERS THAN ε ALLOWS"
    figure = roc_figure(curves, title, [*about, f"the best of {len(without.rocs)} attacks"])
    (out / "membership-with-privacy.svg").write_text(to_svg(figure))
    save_png(_digits(pictures, noise), out / "inversion.png")


def _digits(pictures: tuple[Inverted, Inverted], noise: float) -> alt.LayerChart:
    names = ("recovered, no noise", f"recovered, noise {noise:.1f} C")
    images = [Picture("the client's record", pictures[0].record.reshape(28, 28), "never sent")]
    for name, each in zip(names, pictures, strict=True):
        images.append(Picture(name, each.recovered.reshape(28, 28), f"PSNR {each.psnr:.0f} dB"))
    about = ["MNIST", "one step on one record", "network with 128 hidden units"]
    return picture_figure(images, "One update shows the digit, unless there is noise", about)


def _curve(name: str, roc: Roc, limit: NDArray[np.float64] | None = None) -> AttackCurve:
    note = f"AUC {roc.area:.2f}; {percent(roc.at(0.001).true_positive_rate)} found at {percent(0.001)}"
    return AttackCurve(name, roc.false_positive_rates, roc.true_positive_rates, note, limit, _GRID)


def percent(share: float) -> str:
    """A share for people, with two digits: '0.24 %'."""
    return f"{100 * share:.2g}\N{NO-BREAK SPACE}%"


if __name__ == "__main__":
    main()
