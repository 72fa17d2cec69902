"""Data of each reproduction, and short runs that keep their budgets; the goals are those of the command."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch.nn import functional

import fedprivacy as fp
from simulations.reproduce import digits, logistic, mnist, school
from simulations.reproduce.experiment import Workplace
from simulations.reproduce.readmission import PAYERS, READMISSION, Readmission, encounters
from simulations.reproduce.survival import concordance_index, expected_risk, hazard_model, survival_loss
from simulations.reproduce.tcga_brca import TCGA_BRCA, TcgaBrca, patients

DATA = Path(__file__).parents[3] / "shared" / "data"


def needs(*files):
    """Skip a test where a file is not beside the repository."""
    return pytest.mark.skipif(not all((DATA / file).exists() for file in files), reason=f"{files} are not there")


needs_encounters, needs_regions = needs("readmission.csv.gz"), needs(*TCGA_BRCA.data)


def short_run(reproduction, folder, data=DATA, seed=100):
    """Measure a reproduction that a test has made short: all of its rows, in their order."""
    found = dict(reproduction.measure(seed, Workplace(data, folder / "runs", lambda words: None)))
    assert list(found) == [row.name for row in reproduction.rows]
    return found


# --- digits ---


def test_a_scan_s_features_are_its_own_and_of_length_1():
    task, scans = digits.ScatteredDigits(4.0), digits.ScatteredDigits(1.0).load_records()[0][:6]
    features = task.scale(scans)
    assert features.shape == (6, task.model().in_features)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(task.scale(scans[2:3]), features[2:3], atol=1e-6)
    assert task.dataset == "digits"  # what it spends adds up with what others spend on these records


def test_products_stand_for_the_square_of_the_features_inner_product():
    unit = torch.nn.functional.normalize(torch.randn(40, 200, generator=torch.Generator().manual_seed(1)))
    found = digits.products(unit)
    kernel = found @ found.T / digits.PRODUCTS
    assert (kernel - (unit @ unit.T) ** 2).abs().max() < 0.2


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_a_short_run_on_digits_learns_within_its_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "ROUNDS", 3)
    found = short_run(digits.DIGITS, tmp_path)
    for epsilon, measured in zip((1.0, 3.0, 8.0), found.values(), strict=True):
        assert 0.9 * epsilon < measured.epsilon <= epsilon
    assert found["epsilon 8"].value > 0.7
    assert (tmp_path / "runs" / "epsilon-8" / "run.db").exists()


# --- DP-SCAFFOLD's users ---


@pytest.fixture
def few_users(monkeypatch):
    """Fewer and smaller users; what was made of others is forgotten before and after."""
    for name, number in {"USERS": 20, "RECORDS": 300, "TRAINED": 250}.items():
        monkeypatch.setattr(logistic, name, number)
    for made in (logistic.users, logistic.least_loss):
        made.cache_clear()
    yield
    for made in (logistic.users, logistic.least_loss):
        made.cache_clear()


def test_inputs_have_norm_1_and_users_differ_by_alpha_and_beta(few_users):
    inputs, classes = logistic.users(0.0, 0.0)
    assert inputs.shape == (20, 250, logistic.INPUTS) and classes.shape == (20, 250)
    torch.testing.assert_close(inputs.norm(dim=2), torch.ones(20, 250))
    apart, _ = logistic.users(0.0, 5.0)
    spread, alike = (1 - of.mean(1).norm(dim=1).mean() for of in (apart, inputs))
    assert spread < 0.7 * alike  # each keeps to itself
    assert not torch.equal(logistic.users(5.0, 0.0)[1], classes)


@pytest.mark.exhaustive
def test_the_least_loss_is_that_of_the_optimum(few_users):
    """Found of the inputs as they are, in float64, until hardly a gradient is left."""
    inputs, classes = logistic.users(1.0, 1.0)
    model = logistic.Logistic(1.0, 1.0).model().double()
    rows, wanted = inputs.flatten(0, 1).double(), classes.flatten()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=600, tolerance_grad=1e-6, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows), wanted)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert max(parameter.grad.abs().max() for parameter in model.parameters()) < 1e-5
    assert logistic.least_loss(1.0, 1.0) == pytest.approx(closure().item(), abs=1e-5)


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_short_runs_come_nearer_to_the_optimum_and_say_what_they_cost(few_users, monkeypatch, tmp_path):
    """Noise is less than the paper's, as so few records and rounds need."""
    for name, value in {"rounds": 8, "cohort_size": 10, "noise_multiplier": 4.0}.items():
        monkeypatch.setitem(logistic.SETTINGS, name, value)
    found = short_run(logistic.LOGISTIC, tmp_path)
    for (alpha, beta), name in zip(logistic.UNLIKE, ("FedAvg (0, 0)", "FedAvg (1, 1)", "FedAvg (5, 5)"), strict=True):
        untrained = logistic.loss_of(logistic.Logistic(alpha, beta).model(), alpha, beta).item()
        start = math.log10(untrained - logistic.least_loss(alpha, beta))
        assert found[name].value < start - 0.02
        assert found[name.replace("FedAvg", "SCAFFOLD")].value < start - 0.02
    assert len({measured.epsilon for measured in found.values()}) == 1  # the same sizes, steps and noise
    assert 0.1 < found["FedAvg (0, 0)"].epsilon < 10.0


# --- MNIST ---


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Few pictures, of which the brighter half shows where the digit is, in a file like MNIST's; and few steps."""
    random, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    y = random.integers(0, 10, 700)
    pixels = random.integers(0, 60, (700, 28, 28))
    for picture, digit in zip(pixels, y, strict=True):
        picture[2 * digit + 2 : 2 * digit + 6, 6:22] += 180
    np.savez(folder / "mnist.npz", X=pixels.reshape(700, 784).astype(np.uint8), y=y.astype(np.uint8))
    monkeypatch.setattr(mnist, "TRAINING", 600)
    monkeypatch.setattr(mnist, "HELD_OUT", 100)
    monkeypatch.setattr(mnist.ScatteredMnist, "recipe", replace(mnist.ScatteredMnist.recipe, rounds=3))
    for name in ("FROM_SCRATCH", "SCATTERING"):
        monkeypatch.setattr(mnist, name, replace(getattr(mnist, name), batch_size=200, steps=20))
    return folder


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_every_row_of_a_short_run_on_pictures_keeps_its_budget(made_up, tmp_path):
    found, budgets = short_run(mnist.MNIST, tmp_path, made_up, seed=0), [2.93, 2.93, 3.0, 3.0, 3.0, 3.0]
    assert all(0.9 * budget < row.epsilon <= budget for row, budget in zip(found.values(), budgets, strict=True))
    assert found["scattering"].value > 0.3


def test_what_is_tested_on_is_not_trained_on(monkeypatch):
    """The records next to those of the training, and no others."""
    seen = {}

    def train(model, loss, data, **options):
        seen["trained"] = data[1].tolist()
        return SimpleNamespace(model=model, epsilon=1.0)

    monkeypatch.setattr(mnist.fp, "train", train)
    monkeypatch.setattr(mnist, "accuracy", lambda model, inputs, digits: float(len(digits)))
    monkeypatch.setattr(mnist, "HELD_OUT", 10)
    data = fp.Shard(torch.zeros(70, 2), torch.arange(70))
    measured = mnist.central(torch.nn.Linear(2, 2), mnist.SCATTERING, data, records=50, seed=0)
    assert (seen["trained"], measured.value) == (list(range(50)), 10.0)


def test_clients_share_no_digit():
    task = mnist.ScatteredMnist(fp.Shard(torch.zeros(63_000, 1), torch.arange(63_000)))
    shards = [task.shard(fp.ShardSource(partition_id=part, num_partitions=10)).targets for part in range(10)]
    assert {len(shard) for shard in shards} == {6000}
    assert torch.cat(shards).sort().values.equal(torch.arange(60_000))


def test_the_network_is_the_paper_s():
    network = mnist.tanh_network()
    assert sum(parameter.numel() for parameter in network.parameters()) == 26_010
    assert network(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


# --- readmission: encounters of patients, by row and by patient ---


@needs_encounters
@pytest.mark.exhaustive
def test_the_encounters_are_those_of_the_publication_and_a_patient_is_trained_or_tested():
    table = encounters(DATA)
    assert len(table.inputs) == 101_766
    assert len(set(table.patients.tolist())) == 71_518
    assert not set(table.patients[table.tested]) & set(table.patients[~table.tested])
    assert 0.18 < table.tested.mean() < 0.22
    assert np.bincount(table.payers)[0] == 40_256, "of no known payer"
    assert (table.inputs.min(), table.inputs.max()) == (0.0, 1.0)


@needs_encounters
@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_a_short_run_on_encounters_keeps_its_budgets(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reproduce.readmission.OPEN_ROUNDS", 2)
    recipe = fp.Recipe(clients=len(PAYERS), rounds=2, sampling_rate=0.02, learning_rate=0.5, delta=1e-5)
    monkeypatch.setattr(Readmission, "recipe", recipe)
    measured = short_run(READMISSION, tmp_path)
    for row in READMISSION.rows:
        if row.budget is not None and row.line:
            assert measured[row.name].epsilon <= row.budget


# --- School ---

SIZES = (30, 55, 80, 105)


@pytest.fixture
def few_schools(tmp_path, monkeypatch):
    """A file of made-up schools, as the true one is laid out; a pupil's score follows from one feature."""
    random = np.random.default_rng(1)
    features, scores = np.empty((1, len(SIZES)), object), np.empty((1, len(SIZES)), object)
    for place, size in enumerate(SIZES):
        features[0, place] = random.integers(0, 2, (size, school.FEATURES))
        features[0, place][:, school.PERCENTAGES] *= 50
        scores[0, place] = 20.0 + 30.0 * features[0, place][:, :1] + np.arange(size)[:, None] / size
    savemat(tmp_path / "school.mat", {"X": features, "Y": scores})
    monkeypatch.setattr(school, "SCHOOLS", len(SIZES))
    return tmp_path


def test_a_pupil_is_either_trained_on_or_held_out(few_schools):
    task = school.School(few_schools / "school.mat", 0)
    for place, size in enumerate(SIZES):
        source = fp.ShardSource(partition_id=place, num_partitions=len(SIZES))
        trained, held = task.shard(source), task.held_out(source)
        assert (len(trained), len(held)) == (size - round(0.2 * size), round(0.2 * size))
        together = torch.cat([trained.targets, held.targets])
        assert len(together.unique()) == size and together.max() <= 50.0 + 1.0 / school.LARGEST_SCORE
        assert trained.inputs.min() >= 0 and trained.inputs.max() <= 1.0


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_short_runs_keep_their_budgets_and_personal_models_their_schools(few_schools, monkeypatch, tmp_path):
    for name, value in {"rounds": 20, "learning_rate": 0.1}.items():
        monkeypatch.setitem(school.SETTINGS, name, value)
    monkeypatch.setattr(school, "EPSILONS", (6.0, 10.0))
    found = short_run(school.SCHOOL, tmp_path, few_schools)
    for name, measured in found.items():
        budget = 10.0 if name.endswith("at 10") else 6.0
        assert 0.9 * budget < measured.epsilon <= budget
    untrained = (35.0 / school.LARGEST_SCORE) ** 2
    assert max(measured.value for measured in found.values()) < untrained
    assert len({measured.value for measured in found.values()}) == len(found)


# --- survival, and Fed-TCGA-BRCA: FLamby's patients in FLamby's split ---

ENDS = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("risks", "patients", "concordance"),
    [
        ([2.0, 1.0], [(1, 1.0), (1, 2.0)], 1.0),
        ([1.0, 2.0], [(1, 1.0), (1, 2.0)], 0.0),
        ([1.0, 1.0], [(1, 1.0), (1, 2.0)], 0.5),  # equal risks
        ([3.0, 2.0, 1.0], [(1, 1.0), (0, 2.0), (1, 3.0)], 1.0),  # the censored one is compared with the first alone
        ([2.0, 1.0, 3.0], [(1, 1.0), (0, 2.0), (1, 3.0)], 0.5),
        ([2.0, 1.0], [(1, 1.0), (0, 1.0)], 1.0),  # at equal times, who was censored lived longer
        ([2.0, 1.0, 0.0], [(1, 1.0), (1, 1.0), (0, 2.0)], 1.0),  # two events at once say nothing of each other
        ([4.0, 1.0, 3.0, 2.0], [(1, 1.0), (1, 2.0), (1, 3.0), (0, 4.0)], 4 / 6),
        ([1.0, 2.0], [(0, 1.0), (0, 2.0)], math.nan),  # without an event
    ],
)
def test_concordance_counts_pairs_as_one_does_by_hand(risks, patients, concordance):
    assert concordance_index(torch.tensor(risks), torch.tensor(patients)) == pytest.approx(concordance, nan_ok=True)


@pytest.mark.parametrize(
    ("event", "time", "likelihood"),
    [
        (1, 0.0, 0.1),  # an event on the first day is in the first interval
        (1, 1.0, 0.1),
        (1, 1.5, 0.9 * 0.2),
        (1, 3.0, 0.9 * 0.8 * 0.3),
        (0, 0.5, 1.0),
        (0, 1.5, 0.9),
        (0, 3.5, 0.9 * 0.8 * 0.7),
        (1, 3.5, 0.9 * 0.8 * 0.7),  # after the last interval everybody is censored
    ],
)
def test_a_patients_likelihood_is_the_product_over_her_intervals(event, time, likelihood):
    logits = torch.logit(torch.tensor([[0.1, 0.2, 0.3]]))
    loss = survival_loss(logits, torch.tensor([[float(event), time]]), ENDS)
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(-math.log(likelihood), abs=1e-6)


def test_risk_is_minus_the_logarithm_of_surviving():
    assert expected_risk(torch.logit(torch.tensor([[0.1, 0.2]]))).item() == pytest.approx(-math.log(0.9 * 0.8))


def test_at_first_everybody_has_the_given_hazard():
    logits = hazard_model(4, 3, 0.03)(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(logits.sigmoid(), torch.full((5, 3), 0.03))


@needs_regions
def test_the_regions_are_those_of_flamby_and_covariates_are_moved_by_public_constants_alone():
    parts = patients(DATA)
    assert [len(parts[f"train_{region}"]) for region in range(6)] == [248, 156, 164, 129, 129, 40]
    assert [len(parts[f"test_{region}"]) for region in range(6)] == [63, 40, 42, 33, 33, 11]
    deaths = sum(part.targets[:, 0].sum().item() for part in parts.values())
    assert deaths == 151 and all(part.inputs.shape[1] == 39 for part in parts.values())
    inputs = torch.cat([part.inputs for part in parts.values()])
    assert set(inputs[:, 1:].unique().tolist()) == {0.0, 1.0}
    assert inputs[:, 0].abs().max() < 3.0 and abs(inputs[:, 0].mean().item()) > 1e-3


@needs_regions
@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_a_short_run_on_regions_keeps_its_budgets(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reproduce.tcga_brca.OPEN_ROUNDS", 2)
    monkeypatch.setattr(TcgaBrca, "recipe", fp.Recipe(clients=6, rounds=2, delta=1e-3))
    measured = short_run(TCGA_BRCA, tmp_path)
    assert measured["no privacy"].epsilon is None
    assert all(measured[f"epsilon {epsilon}"].epsilon <= epsilon for epsilon in (1, 3, 8))
