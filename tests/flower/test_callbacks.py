"""Callbacks hear of a run, measure its model and end it early; a run that goes on has what they remembered."""

import pytest
import torch

import fedprivacy as fp
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.runs.callbacks import CallbackError
from fedprivacy.runs.records.folder import read_lines
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.values.runs import RunStatus
from tests.flower import runs
from tests.flower.blobs import BLOBS, Blobs, plan_of
from tests.runs.rounds import rounds_of

pytestmark = pytest.mark.usefixtures("undrawn")


class Diary(fp.Callback):
    """Notes what it is told."""

    def __init__(self, ended_by=None, ended_in=2):
        self.told, self.ended_by, self.ended_in = [], ended_by, ended_in

    def begin(self, plan):
        self.told.append(("begin", plan.config.rounds))

    def after_round(self, result):
        self.told.append(("round", result.round))
        if self.ended_by and result.round == self.ended_in:
            raise self.ended_by

    def end(self):
        self.told.append(("end",))


class Sum(fp.Callback):
    """Measures the model, and what it has measured so far."""

    def begin(self, plan):
        """Begin at nothing: an object may watch one run after another, and what a checkpoint keeps comes later."""
        self.so_far = 0.0

    def measure(self, round, model):
        assert not model.training and not torch.is_grad_enabled()
        self.so_far += sum(parameter.sum().item() for parameter in model.parameters())
        again = Blobs().evaluate(model)["accuracy"]
        model.weight.zero_()  # it is the callback's own
        return {"so_far": self.so_far, "accuracy_again": again}


class Few(fp.EarlyStopping):
    """Stops a run for no reason but that so many rounds are finished."""

    def after_round(self, result):
        if result.round == self.patience:
            self.stop_because = f"{self.patience} rounds are enough"


def simulate(folder, *callbacks, **settings):
    given = {"clients": 3, "rounds": 4, "seed": 1, "epsilon": 2.0} | settings
    return fp.simulate(BLOBS, callbacks=callbacks, progress=False, out=folder, **given)


def status(folder):
    (found,) = RunStore(url_in(folder)).runs()
    return found.status


def test_they_hear_of_every_round_and_of_the_end_also_of_a_run_that_does_not_finish(tmp_path, caplog):
    failing, other = Diary(ValueError("no more")), Diary()
    with pytest.raises(ValueError, match="no more") as raised:
        simulate(tmp_path / "run", failing, other)
    assert failing.told == [("begin", 4), ("round", 0), ("round", 1), ("round", 2), ("end",)]
    assert other.told == [("begin", 4), ("round", 0), ("round", 1), ("end",)]
    assert "In the callback Diary, after_round 2." in raised.value.__notes__
    assert "No checkpoint keeps told of Diary" in caplog.text


def test_one_that_cannot_begin_ends_those_that_have_begun_and_nothing_is_spent(tmp_path):
    class Broken(fp.Callback):
        def begin(self, plan):
            raise OSError("disk full")

    diary = Diary()
    with pytest.raises(OSError, match="disk full") as raised:
        simulate(tmp_path / "run", diary, Broken())
    assert raised.value.__notes__[0] == "In the callback Broken, begin."
    assert diary.told == [("begin", 4), ("end",)]
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_what_they_measure_is_recorded_beside_the_rest(tmp_path):
    """Callbacks measure the model that the run keeps."""
    run = simulate(tmp_path / "run", Sum(), ema_decay=0.5)
    rounds = run.rounds
    assert all(row["accuracy"] == row["accuracy_again"] for row in rounds) and len(rounds) == 4
    total = sum(parameter.sum().item() for parameter in run.model().parameters())
    assert rounds[-1]["so_far"] - rounds[-2]["so_far"] == pytest.approx(total, abs=1e-5)
    assert [record["metrics"]["so_far"] for record in rounds_of(tmp_path / "run")] == [row["so_far"] for row in rounds]


class Scripted(Blobs):
    """Reaches what it is told to."""

    def __init__(self, *reached):
        self.reached = list(reached)

    def evaluate(self, model):
        return {"accuracy": self.reached.pop(0)}


@pytest.mark.parametrize(
    ("reached", "settings", "finished"),
    [
        ((0.5, 0.6, 0.6, 0.65, 0.6, 0.6), {"patience": 2}, 5),
        ((0.5, 0.6, 0.6, 0.65, 0.6, 0.6), {"patience": 2, "least_change": 0.08}, 3),
        ((0.5, 0.4, 0.3, 0.3, 0.3, 0.2), {"patience": 2, "less_is_better": True}, 4),
        ((float("nan"), 0.4, 0.5, 0.6, 0.7, 0.8), {"patience": 2}, 5),
    ],
)
def test_early_stopping_waits_for_something_better(reached, settings, finished):
    stopping = fp.EarlyStopping(**settings)
    told = runs.run(plan_of(Scripted(*reached), rounds=5), callbacks=[stopping])
    assert told.records[-1].round == finished
    assert bool(told.result.stopped_because) is (finished < 5)


def test_early_stopping_names_a_metric_that_nobody_measures():
    with pytest.raises(CallbackError, match=r"metric is 'accurcy', which no round has .* the metrics are accuracy"):
        runs.run(plan_of(BLOBS, rounds=5), callbacks=[fp.EarlyStopping("accurcy", patience=2)])


@pytest.mark.exhaustive
def test_with_user_level_noise_a_callback_is_not_told_who_joined(tmp_path):
    class Curious(fp.Callback):
        def after_round(self, result):
            hidden = (result.participants, result.failures, result.unreconciled, result.spent)
            assert not any(hidden) and result.metrics and result.user_level

    simulate(tmp_path / "run", Curious(), user_level_noise_multiplier=1.0, fraction_train=0.5, clients=6)


@pytest.mark.exhaustive
def test_a_run_that_goes_on_has_what_its_callbacks_remembered(tmp_path):
    """The same bytes as without the interruption, and the same end."""
    simulate(tmp_path / "whole", Sum(), Few(patience=3), Diary())
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "run", Sum(), Few(patience=3), Diary(KeyboardInterrupt()))
    few = Few(patience=3)
    fp.simulate(BLOBS, resume=tmp_path / "run", callbacks=[Sum(), few, Diary()], progress=False)
    assert rounds_of(tmp_path / "run") == rounds_of(tmp_path / "whole")
    assert status(tmp_path / "run") is status(tmp_path / "whole") is RunStatus.STOPPED
    again = Few(patience=3)
    fp.simulate(BLOBS, resume=tmp_path / "run", callbacks=[Sum(), again, Diary()], progress=False)
    assert again.stop_because == few.stop_because == "3 rounds are enough"
    assert len(rounds_of(tmp_path / "run")) == 3  # it is not run again


@pytest.mark.exhaustive
def test_a_run_goes_on_with_its_own_callbacks_or_with_none(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "run", Sum(), Diary(KeyboardInterrupt()))
    before = read_lines(tmp_path / "run")
    for others, named in (([Sum()], "Sum"), ([Diary(), Sum()], "Diary, Sum")):
        with pytest.raises(fp.ConfigError, match=f"callbacks has {named}, and the run that goes on had Sum, Diary"):
            fp.simulate(BLOBS, resume=tmp_path / "run", callbacks=others, progress=False)
    assert read_lines(tmp_path / "run") == before
    run = fp.simulate(BLOBS, resume=tmp_path / "run", progress=False)
    assert "The run goes on without its callbacks: Sum, Diary." in caplog.text
    assert run.history.finished == 4 and "so_far" not in run.rounds[-1]


def test_what_is_no_callback_is_refused_before_there_is_a_folder_and_gives_no_text_as_soon_as_it_is_asked(tmp_path):
    for given, words in (
        (Diary, r"callbacks has Diary, which is no fedprivacy.Callback; write Diary\(\)"),
        (3, "callbacks has int, which is no fedprivacy.Callback; derive"),
        (print, "callbacks has builtin_function_or_method, which is no fedprivacy.Callback; derive"),
    ):
        with pytest.raises(CallbackError, match=words):
            simulate(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()

    class Undecided(fp.Callback):
        stop_because = 3

    with pytest.raises(CallbackError, match="Undecided has stop_because 3; give it a text"):
        fp.simulate(BLOBS, clients=2, out=tmp_path / "run", callbacks=Undecided(), progress=False)  # a list of one


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"accuracy": 0.5}, "measures 'accuracy', a metric that the round has already; return new names"),
        (None, "Wrong measures a NoneType; return numbers by name"),
        ({3: 0.5}, "measures 3, which is no name; return new names with numbers"),
        ({"note": "fine"}, "measures 'note', which is no number; return new names with numbers"),
    ],
)
def test_what_no_round_can_record_is_refused(measured, words, tmp_path):
    class Wrong(fp.Callback):
        def measure(self, round, model):
            return measured if round else {}

    with pytest.raises(CallbackError, match=words) as raised:
        simulate(tmp_path / "run", Wrong(), clients=2)
    assert any("To go on after the last finished round" in note for note in raised.value.__notes__)
    assert load_checkpoint(tmp_path / "run").round == 0


def test_early_stopping_of_no_sense_is_refused():
    for name, values in {"patience": (0, 2.5), "least_change": (-1.0, float("nan")), "metric": (3,)}.items():
        for value in values:
            with pytest.raises(CallbackError, match="; give "):
                fp.EarlyStopping(**{name: value})
