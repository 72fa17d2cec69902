"""`fp.train` is a loop over private gradients: any optimiser, schedule and evaluation; errors cost nothing."""

import re
import resource
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

import fedprivacy as fp
from fedprivacy.single import loop
from tests.processes import in_child
from tests.single.coins import charged, coins, flat, new_model, private, train

ADAM = partial(torch.optim.Adam, lr=0.1)
COSINE = partial(CosineAnnealingLR, T_max=6)


def by_hand(optimizer, schedule=None, rates=None):
    """Parameters after the same training in a loop of one's own."""
    model = new_model()
    gradients, moves = private(model, seed=1), optimizer(model.parameters())
    rated = schedule(moves) if schedule else None
    while gradients.left:
        if rates:
            moves.param_groups[0]["lr"] = rates(gradients.taken + 1)
        gradients.backward()
        moves.step()
        if rated:
            rated.step()
    return flat(model)


@pytest.mark.parametrize(
    ("name", "of_torch", "settings"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("adam", torch.optim.Adam, {"learning_rate": 0.1}),
        ("adamw", torch.optim.AdamW, {"learning_rate": 0.1, "weight_decay": 0.2}),
    ],
)
def test_a_named_optimiser_is_torch_s_with_the_settings_that_are_given(name, of_torch, settings):
    rate = settings.get("learning_rate", 0.5)
    others = {setting: value for setting, value in settings.items() if setting != "learning_rate"}
    trained = train(optimizer=name, seed=1, **settings).model
    assert torch.equal(flat(trained), by_hand(partial(of_torch, lr=rate, **others)))


def test_any_torch_optimiser_is_taken_as_a_factory_or_as_it_is():
    model = new_model()
    made = train(model, optimizer=torch.optim.RMSprop(model.parameters(), lr=0.1), seed=1)
    assert torch.equal(flat(model), flat(new_model()))  # it was copied with the model
    expected = by_hand(partial(torch.optim.RMSprop, lr=0.1))
    assert torch.equal(flat(made.model), expected)
    assert torch.equal(flat(train(optimizer=partial(torch.optim.RMSprop, lr=0.1), seed=1).model), expected)


@pytest.mark.exhaustive
def test_a_schedule_is_a_function_of_the_step_or_a_scheduler_of_torch():
    def rates(step):
        return 0.5 / step

    assert torch.equal(
        flat(train(schedule=rates, seed=1).model), by_hand(partial(torch.optim.SGD, lr=1.0), None, rates)
    )
    scheduled = flat(train(schedule=COSINE, optimizer=ADAM, seed=1).model)
    assert torch.equal(scheduled, by_hand(ADAM, COSINE))
    assert not torch.equal(scheduled, by_hand(ADAM))


def test_an_evaluation_sees_a_copy_and_its_figures_are_rows():
    def evaluate(model):
        assert not model.training and not torch.is_grad_enabled()
        weight = model.weight.sum().item()
        model.weight.fill_(9.0)
        return {"weight": weight}

    trained = train(evaluate=evaluate, evaluate_every=np.int64(4), seed=1, epsilon=np.float64(2.0))
    assert [row["step"] for row in trained.rows] == [0, 4, 6]
    assert trained.rows[0]["epsilon"] == 0.0 < trained.rows[1]["epsilon"] < trained.rows[2]["epsilon"]
    assert trained.rows[2] == {"step": 6, "epsilon": trained.epsilon, "weight": trained.model.weight.sum().item()}
    assert torch.equal(flat(trained.model), flat(train(seed=1).model))
    (first, last) = train(evaluate=lambda model: torch.tensor(2)).rows
    assert (first["value"], last["value"], last["step"]) == (2.0, 2.0, 6)


def test_callbacks_hear_of_each_step_and_its_epsilon():
    heard = []
    trained = train(callbacks=lambda *told: heard.append(told))  # one, or a list of them
    assert [step for step, _ in heard] == [1, 2, 3, 4, 5, 6]
    history = [
        fp.epsilon(sampling_rate=0.25, noise_multiplier=trained.event.noise_multiplier, steps=n, delta=1e-4)
        for n in range(1, 7)
    ]
    assert [epsilon for _, epsilon in heard] == history


WRONG = {
    "learning_rate is -1": {"learning_rate": -1.0},
    "learning_rate is 'fast'; give a number": {"learning_rate": "fast"},
    "momentum is nan; choose a number from 0 to 0.9999": {"momentum": float("nan")},
    "weight_decay is -1; choose a number from 0 to 1,000": {"weight_decay": -1},
    "callbacks is 'print'; give a list of functions": {"callbacks": [print, "print"]},
    "optimizer is None; give a name, a torch.optim.Optimizer": {"optimizer": None},
    "account is 3; give a path": {"account": 3},
    "evaluate_every is 0": {"evaluate_every": 0},
    "evaluate returns a float as 'epsilon'": {"evaluate": lambda model: {"epsilon": 0.1}},
    "schedule is nan for step 3": {"schedule": lambda step: 0.1 if step < 3 else float("nan")},
    "schedule fails for step 1": {"schedule": lambda optimizer: CosineAnnealingLR(optimizer, 6)},
    "schedule is ReduceLROnPlateau, whose steps need metrics": {"schedule": ReduceLROnPlateau},
    "optimizer is LBFGS, whose steps need closure": {"optimizer": torch.optim.LBFGS},
    "optimizer makes a list": {"optimizer": list},
    "optimizer moves parameters that are not the model's": {"optimizer": lambda _: ADAM(new_model().parameters())},
    "optimizer is 'lion'": {"optimizer": "lion"},
    "momentum and weight_decay are those of a named optimizer": {"optimizer": ADAM, "momentum": 0.9},
    "device is 'tpu'": {"device": "tpu"},
    "steps is 0": {"steps": 0},
    "loss is a tuple; give a function of outputs": {"loss": coins()},
    "model is a Tensor; give a torch.nn.Module": {"model": coins()[0]},
    "the loss returns shape []": {"loss": torch.nn.CrossEntropyLoss()},
    "checkpoint is ''; give a path": {"checkpoint": ""},
    "so (too many positional arguments); give a function of a model": {"evaluate": lambda: 1.0},
    "evaluate_every is 2, but evaluate is open": {"evaluate_every": 2},
    "data is of type NoneType, without a length or an index; give inputs and targets": {"data": None},
    "data is a tuple of 1; give inputs and targets": {"data": coins()[:1]},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_trained_is_refused_before_a_step_is_charged(words, tmp_path):
    with pytest.raises(ValueError, match=re.escape(words)):
        train(**{"checkpoint": tmp_path} | WRONG[words])
    assert not (tmp_path / "account.log").exists() or charged(tmp_path / "account.log") == 0


def test_a_checkpoint_that_cannot_be_written_whole_leaves_the_former_one(tmp_path):
    """Its process may write 2,000 bytes of a file and no more, as on a disk that fills up."""
    train(checkpoint=tmp_path, seed=1, steps=2)
    before = loop.read(tmp_path)

    def write():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(OSError, match="too large"):
            loop.write(tmp_path, before | {"model": {"weight": torch.randn(10_000)}})

    assert in_child(write) == 0
    after = loop.read(tmp_path)
    assert after["gradients"] == before["gradients"] and torch.equal(
        after["model"]["weight"], before["model"]["weight"]
    )


def test_a_checkpoint_that_cannot_be_kept_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for name, words in (("file", "which is a file"), ("file/in", "cannot be written")):
        with pytest.raises(ValueError, match=f"checkpoint is .*{words}"):
            train(checkpoint=tmp_path / name)


def test_a_folder_holds_one_training_which_goes_on_with_its_own_settings_alone(tmp_path):
    train(checkpoint=tmp_path, seed=1)
    with pytest.raises(ValueError, match="say resume=True, or name another folder"):
        train(checkpoint=tmp_path)
    with pytest.raises(ValueError, match="resume is True, but checkpoint is open"):
        train(resume=True)
    with pytest.raises(ValueError, match=r"clipping_norm is 2.0, and the training in .* has 1.0"):
        train(checkpoint=tmp_path, resume=True, clipping_norm=2.0)
    (tmp_path / "training.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        train(checkpoint=tmp_path, resume=True)
    assert charged(tmp_path / "account.log") == 6


INPUTS, SIDES = coins(40)
PROTOTYPE = torch.zeros(2), torch.tensor(0)


class Items(torch.utils.data.Dataset):
    """The first of the coins as something else than a pair."""

    def __init__(self, item, wrong=40):
        self._item, self._wrong = item, wrong

    def __len__(self):
        return 40

    def __getitem__(self, place):
        pair = INPUTS[place], SIDES[place]
        return self._item(*pair) if place < self._wrong else pair


def failing(point, side):
    raise KeyError(float(point[0]))


ITEMS = {
    "three values": (lambda point, side: (point, side, 1), "an item that is a tuple of 3"),
    "a target that is a float": (lambda point, side: (point, float(side)), "a target of shape [] and torch.float32"),
    "a longer input": (lambda point, side: (torch.ones(3), side), "an input of shape [3] and torch.float32"),
    "an error": (failing, "an item that raises KeyError"),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_items_of_another_kind_are_counted_with_the_reason_and_most_are_refused(kind, caplog, tmp_path):
    item, reason = ITEMS[kind]
    trained = train(data=Items(item, wrong=3), prototype=PROTOTYPE, steps=1)
    assert trained.steps == 1 and "data: 3 of 40 records cannot be read and count for nothing." in caplog.text
    assert f"3 rows, {reason}" in caplog.text and "→ let the Dataset return (input, target)" in caplog.text
    refused = re.escape("more than half of the records count for nothing: 40 of 40 records cannot be read")
    with pytest.raises(ValueError, match=f"{refused}.*{re.escape(reason)}.*say allow_null=True"):
        train(data=Items(item), prototype=PROTOTYPE, account=tmp_path / "account.log")
    assert not (tmp_path / "account.log").exists()
    assert train(data=Items(item), prototype=PROTOTYPE, steps=1, allow_null=True).steps == 1


def test_records_without_a_gradient_are_counted_and_most_are_refused(caplog):
    def data(wrong):
        return INPUTS, SIDES.index_fill(0, torch.arange(wrong), 2)

    assert private(new_model(), data(0)).left == 6 and not caplog.records
    for wrong in (1, 20):
        caplog.clear()
        assert private(new_model(), data(wrong)).left == 6
        assert f"data: {wrong} of 40 records that were tried have no gradient" in caplog.text
        assert "labels and words are in range" in caplog.text
    with pytest.raises(ValueError, match="more than half of the records count for nothing: 21 of 40 records that were"):
        private(new_model(), data(21))
    assert private(new_model(), data(40), allow_null=True).left == 6


def test_views_and_drawn_rows_are_tried_as_they_are_trained(caplog):
    flipped = fp.Augmentation(lambda points, chances: points * (0.5 + chances), draws=2)
    shard = fp.Shard(INPUTS, SIDES.index_fill(0, torch.arange(2), 2), persons=[n // 4 for n in range(40)], most_rows=4)
    given = {"augmentation": flipped, "augmentation_multiplicity": 3, "rows_per_step": 4, "batch_size": 5}
    private(new_model(), shard, **given)
    assert "data: 1 of 10 persons that were tried have no gradient" in caplog.text
