"""A configuration is complete or refused, with every problem named at once; so are placements and initial models."""

import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedprivacy as fp
from fedprivacy._support.settings import kind_of
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, RunConfig, resolve
from fedprivacy.runs.settings.device import Gpu, choose_device
from fedprivacy.training.algorithms import ALGORITHMS
from tests.flower.blobs import Blobs, PrivateSizes, plan_of


def problems(**settings):
    task = settings.pop("task_object", None)
    with pytest.raises(ConfigError) as refused:
        resolve({key.replace("_", "-"): value for key, value in settings.items()}, task)
    return refused.value.problems


def test_all_problems_are_reported_at_once_with_setting_value_and_remedy():
    found = problems(
        rounds=0, sampling_rate=1.5, colour="red", strategy="best", seed=-3, clients=2.5, num_server_rounds=3
    )
    assert len(found) == 7
    for words in (
        "rounds is 0; choose a whole number from 1 to a billion.",
        "sampling-rate is 1.5; choose a number above 0, at most 1.",
        "colour is not a setting; the settings are task, clients",
        "strategy is 'best'; choose one of fedavg",
        "seed is -3; choose a whole number from 0 to 2^63 - 1.",
        "clients is 2.5; give a whole number",
        "num-server-rounds is not a setting. Did you mean rounds?",  # as Flower calls it
    ):
        assert any(problem.startswith(words) for problem in found), words


BEYOND = {int: [-1, 0, 2**64], float: [-1.0, 0.0, 2e30, 1.7e308, math.inf]}


def test_a_number_that_cannot_be_is_one_problem_in_words_that_people_use():
    """Whatever is wrong with one setting: nothing else is said to be wrong, and nothing in the arithmetic's words."""
    kinds = {key: {"int": int, "float": float}.get(kind_of(field)) for key, field in FIELDS.items()}
    bounds = {key: FIELDS[key].metadata["bounds"] for key, kind in kinds.items() if kind}
    refused = [(k, v) for k, (low, high) in bounds.items() for v in BEYOND[kinds[k]] if not low <= v <= high]
    assert {key for key, _ in refused} == bounds.keys() and len(bounds) > 30
    for key, value in refused:
        beside = {"server-learning-rate": {"strategy": "fedadam"}}.get(key, {})
        (problem,) = problems(**beside, **{key: value})
        said, _, remedy = problem.partition("; ")
        assert said == f"{key} is {kinds[key](value)}"
        assert not re.search(r"e[+-]\d", remedy)
        if value <= 0:
            assert "above 0" in remedy or "from 0" in remedy or "from 1 to" in remedy


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"strategy": "krum", "fraction_train": math.inf}, "fraction-train"),
        ({"optimizer": "adam", "learning_rate": 0.1, "momentum": 2.0}, "momentum"),
        ({"epsilon": math.inf, "noise_multiplier": "much"}, "noise-multiplier"),
    ],
)
def test_what_follows_from_a_wrong_value_is_not_held_against_the_other_settings(settings, wrong):
    (problem,) = problems(**settings)
    assert problem.startswith(f"{wrong} is ")
    both = problems(**settings, pull=0.1)  # the others are still looked at
    assert sorted(each.split()[0] for each in both) == sorted([wrong, "pull"])


LOCAL, PERSONAL = {"algorithm": "ditto", "local_steps": 4}, {"algorithm": "fedrep", "local_steps": 4}
CONTROLLED = {"algorithm": "scaffold", "local_steps": 4}
USER_LEVEL = {"user_level_epsilon": 8.0, "user_level_delta": 1e-3}

REFUSED = [
    # a value that there is none of
    ({"task": "nothing"}, "task is 'nothing'; choose one of digits, cancer, or write path/to/file.py:name."),
    ({"task": "nosuch.module:T"}, "task names module 'nosuch.module', which cannot be imported"),
    ({"epsilon": math.nan}, "epsilon is nan; give a number."),
    ({"privacy": "perhaps"}, "privacy is 'perhaps'; give true or false."),
    ({"clipping": "none"}, "clipping is 'none'; choose one of flat, per-layer, automatic, adaptive."),
    ({"trackers": "wandb,nosuch"}, "trackers names 'nosuch'; choose from tensorboard, mlflow, wandb, separated"),
    *(({"speeds": text}, "; give equal, lognormal:SIGMA") for text in ("fast", "lognormal:0", "lognormal:9")),
    ({"speeds": "lognormal:1:0"}, "MEDIAN seconds above 0"),
    *(({"availability": text}, "; give diurnal:SHARE") for text in ("diurnal:1", "diurnal:x")),
    *(({"ledger": url}, "sqlite:///path/to/ledger.db") for url in ("mysql://host/name", "sqlite:///:memory:")),
    # privacy
    ({"epsilon": math.inf}, "epsilon is inf, which asks for no noise at all; give a noise-multiplier"),
    ({"spend": 4.0}, "spend is 4.0, and epsilon, the budget of all runs, is 3.0; give a spend of at most epsilon."),
    ({"batch_size": 32, "sampling_rate": 0.1}, "both say how many records join a step; give one of them."),
    ({"privacy": False, "local_evaluation": 2}, "local-evaluation is 2 and privacy is off; leave local-evaluation"),
    ({"local_evaluation": 9, "rounds": 5}, "so that no round would evaluate; give at most 5, or leave it open."),
    # strategies
    ({"proximal_mu": 0.1, "strategy": "fedadam"}, "fedadam does not take; leave it open, or choose fedprox."),
    ({"strategy": "krum", "clients": 4}, "needs 5 clients in each round, and clients times fraction-train is 4;"),
    ({"strategy": "krum", "weighting": "inverse-variance"}, "weighs no update; choose one of fedavg"),
    ({"strategy": "fedprox", "local_steps": 1}, "which is fedavg when local-steps is 1; give local-steps from 2"),
    # algorithms
    *(
        ({"algorithm": name, "local_steps": kind.fewest_steps - 1}, f"give at least {kind.fewest_steps}.")
        for name, kind in ALGORITHMS.items()
        if kind.fewest_steps > 1
    ),
    ({**PERSONAL, "personal_steps": 4}, "the global model needs at least one of them; give fewer personal-steps"),
    ({**CONTROLLED, "momentum": 0.9}, "whose controls are told by plain gradient steps; choose optimizer sgd"),
    ({**CONTROLLED, "strategy": "krum"}, "whose controls are told by the average, and strategy is 'krum'"),
    ({"fine_tuning_rounds": 5, "rounds": 5}, "so that no global model is trained; give fewer, or"),
    ({**LOCAL, "fine_tuning_rounds": 3}, "trains each client's own model already; leave it open, or choose fedavg"),
    # who takes part
    ({"cohort_size": 3, "fraction_train": 0.5}, "cohort-size and fraction-train both say how many clients"),
    ({"cohort_size": 11}, "cohort-size is 11, and clients is 10; give at most as many."),
    ({"over_selection": 1.3}, "over-selection is 1.3, and there is no cohort-size that it would be about; give one."),
    ({"cohort_size": 3, "cohort_sampling": "poisson", "over_selection": 2.0}, "asks for no fixed number"),
    ({"cohort_size": 6, "strategy": "krum", "cohort_sampling": "poisson"}, "'poisson' may leave fewer; leave that"),
    # user-level noise
    ({**USER_LEVEL, "strategy": "krum"}, "there is nothing but their noisy average; choose one of"),
    ({**USER_LEVEL, "local_evaluation": 2}, "what it tells is in no user-level account; leave it open"),
    ({**USER_LEVEL, "user_level_quantile": 0.5}, "user-level-clipping is fixed; choose adaptive, or leave the"),
    ({**USER_LEVEL, "cohort_size": 3}, "each client joins with probability fraction-train, whatever others do"),
    ({**USER_LEVEL, "user_level_delta": 0.2}, "a run that publishes all of one client would do; give a user-level"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_there_is_none_of_or_what_does_not_go_together_is_one_problem(settings, words):
    (problem,) = problems(**settings)
    assert words in problem
    assert problem.endswith(".")


def test_a_ledger_is_no_folder_and_settings_of_another_version_are_named(tmp_path):
    assert problems(ledger=str(tmp_path))[0].endswith(f"a folder; name a file, such as {tmp_path / 'ledger.db'}.")
    public = resolve({}).public()
    with pytest.raises(ConfigError, match=r"has other ones \(colour, rounds\); use that version"):
        RunConfig.from_public({key: value for key, value in public.items() if key != "rounds"} | {"colour": "red"})


def test_a_model_with_batch_norm_and_private_shard_sizes_without_a_guess_are_refused_with_the_remedy():
    class Normed(Blobs):
        def model(self):
            return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    class Unknown(PrivateSizes):
        nominal_shard_size = None

    assert "layer '1' is a BatchNorm1d" in problems(task_object=Normed())[0]
    assert "set nominal_shard_size" in problems(task_object=Unknown())[0]


class Momentous(Blobs):
    recipe = replace(Blobs.recipe, momentum=0.9, weight_decay=0.01)


def test_the_recipe_s_momentum_and_weight_decay_are_for_its_own_optimiser():
    config = resolve({}, Momentous())
    assert (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 0.01)
    config = resolve({"optimizer": "adam", "learning-rate": 0.1}, Momentous())
    assert (config.optimizer, config.learning_rate, config.momentum, config.weight_decay) == ("adam", 0.1, 0.0, 0.0)
    found = problems(optimizer="adamw")
    assert [words in problem for words, problem in zip(("learning-rate", "weight-decay"), found, strict=True)]
    assert problems(optimizer="adamw", learning_rate=0.1) == found[1:]

    class Torn(Blobs):
        recipe = replace(Blobs.recipe, optimizer="adam", momentum=0.9)

    assert problems(task_object=Torn())[0].startswith("optimizer is 'adam', momentum 0.9")


def test_neither_torch_nor_flower_nor_a_database_is_needed_to_know_the_settings():
    heavy = "{'torch', 'flwr', 'sqlalchemy', 'mlflow', 'wandb', 'tensorboard'}"
    code = f"import sys, fedprivacy.runs.settings.configuration; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(workers=0), "workers is 0; choose 1, .* as cores"),
        (Placement(ray_address="ray://head:10001"), "ray-address is 'ray://head:10001', for which Ray has a proxy"),
        (Placement(workers="many", ray_address="head"), "workers is many; choose 1, .*\n.*ray-address is 'head'; give"),
    ],
    ids=str,
)
def test_what_there_cannot_be_is_refused_with_everything_that_is_wrong(placement, words):
    with pytest.raises(ConfigError, match=words):
        placement.check()
    for address in ("auto", "10.0.0.1:6379", "head.cluster:6379", "[fd00::1]:6379"):
        Placement(ray_address=address).check()


def test_auto_spreads_clients_over_the_gpus_and_a_named_device_is_kept(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(choose_device("auto", number)) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [str(choose_device(name, 1)) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]


LARGE, SMALL = Gpu("large", 2**35), Gpu("small", 2**32)


@pytest.mark.parametrize(
    ("workers", "device", "gpus", "expected"),
    [
        (None, "auto", [], []),
        (None, "auto", [LARGE], []),
        (None, "auto", [LARGE] * 3, [(0, 1.0), (1, 1.0), (2, 1.0)]),
        (None, "cuda", [LARGE] * 3, []),
        (1, "auto", [LARGE] * 3, []),
        (2, "auto", [], [(None, 1.0)] * 2),
        (2, "cpu", [LARGE], [(None, 1.0)] * 2),
        (2, "auto", [LARGE], [(0, 0.5)] * 2),
        (5, "cuda", [LARGE] * 2, [(0, 1 / 3), (1, 1 / 2), (0, 1 / 3), (1, 1 / 2), (0, 1 / 3)]),
        (3, "auto", [LARGE, SMALL, LARGE], [(0, 1 / 2), (2, 1.0), (0, 1 / 2)]),
        (4, "cuda:1", [LARGE, SMALL], [(1, 1 / 4)] * 4),
    ],
    ids=str,
)
def test_each_worker_has_a_gpu_or_a_part_of_one(workers, device, gpus, expected):
    assert [(seat.gpu, seat.share) for seat in Placement(workers).seats(device, gpus)] == expected


def test_more_workers_than_gpus_have_memory_for_are_refused():
    words = r"workers is 9, but 5 of them would share a GPU with 4\.3 GB of memory; choose at most 8, or device cpu"
    with pytest.raises(ConfigError, match=words):
        Placement(9).seats("auto", [SMALL] * 2)
    assert len(Placement(8).seats("auto", [SMALL] * 2)) == 8


def test_what_another_run_takes():
    for placement, *told in (
        (HERE, False, "", ""),
        (Placement(workers=8), True, "", ""),  # their number is left open: a run goes on with any
        (Placement(workers=1, ray_address="auto"), True, " --ray-address auto", ", ray_address='auto'"),
    ):
        assert [placement.elsewhere, placement.typed, placement.keywords] == told


class Frozen(Blobs):
    """A body that does not train, and so is no part of what crosses."""

    def model(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        model[0].requires_grad_(False)
        return model


def test_what_does_not_train_is_the_task_s_own(tmp_path, undrawn):
    head = {"2.weight": torch.ones(2, 4), "2.bias": torch.zeros(2)}
    public = str(tmp_path / "public.safetensors")
    save_file(head | {"0.weight": torch.full((4, 2), 9.0)}, public)
    given = {"clients": 3, "rounds": 1, "learning_rate": 1e-9, "initial_model": public, "out": tmp_path / "run"}
    model = fp.simulate(Frozen(), progress=False, **given).model()
    assert torch.equal(model[0].weight, Frozen().model()[0].weight)
    torch.testing.assert_close(model[2].weight, head["2.weight"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no tensors", "cannot be read"),
        ({"weight": torch.zeros(2, 2)}, "for 'bias' the task's model wants shape .2., where it has none"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, "wants shape .2, 2., where it has .2, 3."),
    ],
    ids=["damaged", "lacking", "another shape"],
)
def test_a_file_that_is_not_this_model_s_is_refused(content, says, tmp_path):
    file = tmp_path / "public.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        save_file(content, file)
    with pytest.raises(ConfigError, match=says):
        plan_of(Blobs(), initial_model=str(file))
