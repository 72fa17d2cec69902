"""Each alarm of a gate names a fault that no other alarm sees, of a size that matters; none sounds for nothing."""

import numpy as np
import pytest

from fedprivacy.audit.gates import Alarms, four_claims
from fedprivacy.audit.subject import Change, Neighbours, ObservedNoise
from tests.audit.gates.made_up import Seen, drawn, poisson, sampled


def check_names(gate, words):
    """The gate fails for one reason alone."""
    assert not gate.passed
    assert [reason for reason in gate.reasons if words not in reason] == []


# Noise


def noise(rows, least=False, **layers):
    named = {name.replace("_", " "): size for name, size in layers.items()}
    about = [f"round {number}" for number in range(len(rows))]
    return four_claims.noise(Seen(added=[ObservedNoise(rows=rows, of="", layers=named, about=about, at_least=least)]))


def quieter(rows, where, factor):
    rows[where] *= factor
    return rows


def echoed(rows):
    """The second half of each release repeats the first."""
    half = rows.shape[1] // 2
    rows[:, half : 2 * half] = rows[:, :half]
    return rows


def correlated(rows):
    """A tenth of the variance of one release is that of another."""
    rows[1] = np.sqrt(0.9) * rows[1] + np.sqrt(0.1) * rows[0]
    return rows


NOISE = {
    "a fifth too little in a layer of 100 among 10,000": (
        "The noise in layer 2 is 0.",
        lambda seed: noise(quieter(drawn(seed, 50, 10_000), np.s_[:, -100:], 0.8), layer_1=9900, layer_2=100),
    ),
    "none on one weight of a layer of 10,000": (
        "One number or more in layer 1 is released with hardly any noise, or none.",
        lambda seed: noise(quieter(drawn(seed, 40, 10_000), np.s_[:, 4321], 0.0), layer_1=10_000),
    ),
    "two percent too little, in no layer more than in others": (
        "The noise is 0.9",
        lambda seed: noise(0.98 * drawn(seed, 13, 4000), **{f"layer_{n}": 50 for n in range(80)}),
    ),
    "two percent too much where it must be exact": (
        "The noise is 1.0",
        lambda seed: noise(1.02 * drawn(seed, 20, 4000), **{f"layer_{n}": 50 for n in range(80)}),
    ),
    "a tenth too little in one release of 50": (
        "The noise is not alike in all releases",
        lambda seed: noise(quieter(drawn(seed, 50, 4000), 17, 0.9)),
    ),
    "rounded to a quarter of a deviation": (
        "The noise is not Gaussian",
        lambda seed: noise(np.rint(4 * drawn(seed, 5, 4000)) / 4),
    ),
    "cut off beyond 3.5 deviations": (
        "The noise is not Gaussian",
        lambda seed: noise(drawn(seed, 20, 6000).clip(-3.5, 3.5)),
    ),
    "the same twice within each release": (
        "The noise repeats itself within a release",
        lambda seed: noise(echoed(drawn(seed, 5, 4000))),
    ),
    "a tenth of another release's": ("can be told from that of", lambda seed: noise(correlated(drawn(seed, 5, 4000)))),
}


@pytest.mark.parametrize("fault", NOISE)
def test_noise_with_one_fault_is_named(fault):
    words, gate = NOISE[fault]
    check_names(gate(0), words)


LEAST = {
    "One number or more in layer 1": lambda: noise(quieter(drawn(0, 40, 10_000), np.s_[:, 9], 0), True, layer_1=10_000),
    "The noise is 0.9": lambda: noise(0.98 * drawn(0, 20, 4000), True, **{f"layer_{n}": 50 for n in range(80)}),
}


@pytest.mark.parametrize("words", LEAST)
def test_where_there_may_be_more_noise_too_little_is_named_all_the_same(words):
    check_names(LEAST[words](), words)


@pytest.mark.parametrize("least", [True, False])
def test_right_noise_raises_no_alarm_and_more_of_it_only_where_it_must_be_exact(least):
    assert noise(drawn(1, 40, 4000), least, layer_1=3900, layer_2=100).passed
    assert noise(1.2 * drawn(1, 40, 4000), least, layer_1=3900, layer_2=100).passed is least


# Samples


def shuffled(steps, records=100, epoch=4):
    """Each record joins one step of each epoch; sizes differ."""
    rng = np.random.default_rng(3)
    turns = np.concatenate([rng.integers(epoch, size=records)[None] for _ in range(steps // epoch)])
    return np.concatenate([(turn == np.arange(epoch)[:, None]).astype(int) for turn in turns])


def of_size(steps, records=100, size=25):
    rng = np.random.default_rng(4)
    return np.array([np.isin(np.arange(records), rng.permutation(records)[:size]) for _ in range(steps)]).astype(int)


def same_for_all(steps, records=400):
    """A sixteenth of the records always joins, and the others less often: as many of both join as should."""
    sample = poisson(5, 0.1875 / 0.9375, steps, records)
    sample[:, : records // 16] = 1
    return sample


SAMPLES = {
    "nobody looks": ("No step was taken in a round", lambda: sampled(poisson(1, 0.25, 0), poisson(1, 0.25, 0))),
    "a record is counted twice": (
        "A record was counted 2 times in one step",
        lambda: sampled(poisson(1, 0.25) * (1 + np.eye(60, 100, dtype=int)), poisson(2, 0.25)),
    ),
    "one record is left out at a rate of 1": (
        "At a sampling rate of 1 only 99 of 100 records joined",
        lambda: sampled(np.ones((60, 100)) - (np.arange(6000) == 77).reshape(60, 100), np.ones((60, 100)), rate=1.0),
    ),
    "a fortieth more join": ("A record joins 25.", lambda: sampled(poisson(1, 0.2564, 800), poisson(2, 0.2564, 800))),
    "batches have a fixed size": (
        "The number of records that join a step is not spread",
        lambda: sampled(of_size(60), of_size(60)[:, ::-1]),
    ),
    "some records always join": ("Some records join more steps, or fewer", lambda: sampled(same_for_all(40))),
    "a quarter of a sample is drawn again": (
        "Two rounds have",
        lambda: sampled(one := poisson(1, 0.25, 120), np.where(np.arange(100) < 25, one, poisson(2, 0.25, 120))),
    ),
}
AT_MOST = {
    "a tenth more join": (
        "A record joins 27",
        lambda: sampled(poisson(1, 0.275, 400), poisson(2, 0.275, 400), at_most=True),
    ),
    "every record joins once an epoch": (
        "Batches are shuffled, every record once an epoch",
        lambda: sampled(shuffled(60), shuffled(60)[:, ::-1], at_most=True),
    ),
    "batches have a fixed size": ("Batches have a fixed size: 60 of 60", lambda: sampled(of_size(60), at_most=True)),
}


@pytest.mark.parametrize(("fault", "at_most"), [*((f, False) for f in SAMPLES), *((f, True) for f in AT_MOST)])
def test_samples_with_one_fault_are_named(fault, at_most):
    words, seen = (AT_MOST if at_most else SAMPLES)[fault]
    check_names(four_claims.sampling(seen()), words)


@pytest.mark.parametrize("at_most", [True, False])
def test_independent_samples_raise_no_alarm_and_fewer_only_where_the_rate_must_be_exact(at_most):
    assert four_claims.sampling(sampled(poisson(1, 0.25), poisson(2, 0.25), at_most=at_most)).passed
    fewer = sampled(poisson(1, 0.2, 200), poisson(2, 0.2, 200), at_most=at_most)
    assert four_claims.sampling(fewer).passed is at_most


# Replies and changes


SAME = [("the reply's type", "train"), ("noised 'weights'", b"1"), ("the receipt", 7)]


@pytest.mark.parametrize(
    ("other", "alike", "named"),
    [
        ([*SAME[:2], ("the receipt", 8)], False, "the receipt"),
        ([SAME[0], ("noised 'weights'", b"2"), SAME[2]], True, "'weights'"),
        (SAME[:2], False, "which fields there are"),
        ([SAME[0], ("noised 'weights'", b"2"), SAME[2]], False, None),
        (SAME, True, None),
    ],
)
def test_what_differs_between_neighbours_is_named_unless_it_is_noised(other, alike, named):
    gate = four_claims.release(Seen(replies=[Neighbours(one=SAME, other=other, in_words=str, alike=alike)]))
    if named is None:
        assert gate.passed
    else:
        check_names(gate, named)
        assert len(gate.reasons) == 1


@pytest.mark.parametrize(
    ("moved", "joined", "said"),
    [
        (2.1, True, "One record changed what left by 1.05 clipping norms"),
        (1e-9, False, "A record that did not join a step changed what left"),
        (float("inf"), False, "An update that is not a number left the client"),
        (1.999, True, None),
        (0.0, False, None),
    ],
)
def test_a_change_beyond_the_bound_is_named(moved, joined, said):
    change = Change(about="a record", moved=moved, allowed=2.0 + 1e-6, clipping_norm=2.0, joined=joined)
    gate = four_claims.replay(Seen(moved=[change]))
    if said is None:
        assert gate.passed
    else:
        check_names(gate, said)


# The level of all


@pytest.mark.parametrize("tests", [1, 100])
@pytest.mark.parametrize(("p", "alarms"), [(0.99e-6, 1), (1.01e-6, 0)], ids=["rarer", "oftener"])
def test_a_gate_fails_by_chance_once_in_a_million_whatever_the_number_of_its_tests(p, alarms, tests):
    """The documented probability, over all tests of a gate together."""
    made = Alarms()
    for number in range(tests - 1):
        made.test(0.5, f"test {number}")
    made.test(p / tests, "an alarm")
    assert len(made.reasons) == alarms
    assert made.p_value == pytest.approx(p)
