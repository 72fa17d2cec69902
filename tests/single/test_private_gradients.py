"""Private gradients: charged first, released once, and in any loop's hands without another way to a record."""

import copy
import pickle

import pytest
import torch

import fedprivacy as fp
from fedprivacy.gradients import GradientEngine, UnsupportedModelError
from fedprivacy.guard import Guard, GuardError
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.training.adaptive import ADAPTIVE
from fedprivacy.training.dpsgd import NoisyMean
from tests.processes import in_child
from tests.single.coins import LOSS, charged, coins, gradient, new_model, private

LITTLE = torch.ones(40, 200), torch.arange(40)  # their clipped sum is far below the noise


class Watched:
    """A loss that does something whenever it is asked for, once it is armed."""

    def __init__(self):
        self.act = None

    def __call__(self, outputs, targets):
        if self.act is not None:
            self.act()
        return LOSS(outputs, targets)


def steps_of(gradients, model, rate=0.5):
    """Take all steps that are left, and return every gradient."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=rate), []
    while gradients.left:
        gradients.backward()
        found.append(gradient(model))
        optimizer.step()
    return found


# --- one release ---


@pytest.mark.parametrize("clipping", ["flat", "adaptive"])
def test_a_gradient_is_one_release_of_the_mechanism_at_the_model_s_present_parameters(clipping, tmp_path):
    """An adapted norm is that of the next step."""
    model, norms, adaptive = new_model(), [0.05], clipping == "adaptive"
    account = tmp_path / "account.log" if adaptive else None
    gradients = private(model, seed=1, clipping=clipping, clipping_norm=0.05, account=account)
    mechanism = SampledGaussianSum(gradients.event, 0.05)
    mean = NoisyMean(mechanism, 100.0, ADAPTIVE["adaptive"]() if adaptive else None)
    for step in range(1, 5):
        gradients.backward()
        place = fp.Shard(*coins()), norms[-1], Keystream.from_seed(1, "single"), Position(1, step)
        expected, norm = mean.release(GradientEngine(copy.deepcopy(model), LOSS), *place)
        assert torch.equal(gradient(model), expected) and gradients.clipping_norm == norm
        norms.append(norm)
        with torch.no_grad():
            model.weight.fill_(3.0)  # by whatever optimiser
    assert len(set(norms)) == (5 if adaptive else 1)


def test_a_step_is_charged_before_a_record_is_read(tmp_path):
    for account in (None, tmp_path / "account.log"):
        loss, model, seen = Watched(), new_model(), []
        gradients = private(model, loss=loss, account=account)
        loss.act = lambda seen=seen, gradients=gradients: seen.append(gradients.epsilon)
        assert gradients.epsilon == 0.0
        gradients.backward()
        assert set(seen) == {gradients.epsilon} and gradients.epsilon > 0.0


def test_a_spent_budget_computes_nothing():
    loss, model = Watched(), new_model()
    gradients = private(model, loss=loss)
    *_, last = steps_of(gradients, model)
    loss.act = lambda: pytest.fail("a record was read")
    with pytest.raises(fp.BudgetExhaustedError, match="steps is 6, and all of them are taken: epsilon"):
        gradients.backward()
    assert torch.equal(gradient(model), last)
    assert 0.99 * 2.0 < gradients.epsilon <= 2.0


def test_a_step_that_fails_stays_charged_and_the_next_has_other_noise():
    def interrupt():
        raise KeyboardInterrupt

    loss, model, other = Watched(), new_model(), new_model()
    gradients, undisturbed = private(model, loss=loss, seed=1), private(other, seed=1)
    loss.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        gradients.backward()
    assert model.weight.grad is None
    loss.act = None
    gradients.backward()
    undisturbed.backward()
    assert not torch.equal(gradient(model), gradient(other))
    assert gradients.epsilon > undisturbed.epsilon
    with pytest.raises(fp.BudgetExhaustedError, match="its 6 steps"):
        steps_of(gradients, model)


# --- misuse ---


def test_backward_of_a_loss_is_refused_while_gradients_are_private():
    model = new_model()
    gradients = private(model)
    inputs, targets = coins()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Call PrivateGradients\.backward"):
            LOSS(model(inputs), targets).mean().backward()
        assert [p.grad for p in model.parameters()] == [None, None]
    gradients.backward()
    first = gradient(model)
    gradients.backward()  # another step, which replaces the first
    assert gradients.taken == 2 and not torch.equal(gradient(model), first)
    del gradients
    LOSS(model(inputs), targets).mean().backward()


def test_it_cannot_be_copied_or_pickled():
    for double in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            double(private(new_model()))


def test_another_process_and_a_step_within_a_step_are_refused():
    loss, model = Watched(), new_model()
    gradients, found = private(model, loss=loss), []

    def again():
        with pytest.raises(RuntimeError, match="taking a step already") as error:
            gradients.backward()
        found.append(error)

    loss.act = again
    gradients.backward()
    assert found and gradients.taken == 1

    def elsewhere():
        with pytest.raises(RuntimeError, match="made in another process"):
            gradients.backward()

    assert in_child(elsewhere) == 0


def test_a_method_that_is_not_proven_anew_costs_nothing(monkeypatch):
    model = new_model()
    gradients = private(model)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.Linear, "forward", lambda layer, inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gradients.backward()
    assert gradients.epsilon == 0.0
    gradients.backward()
    assert gradients.epsilon > 0.0


def test_other_parameters_are_refused_before_a_charge():
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
    gradients = private(model)
    second = model[1]
    model[1] = torch.nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match=r"not those of the beginning \(1.bias, 1.weight\)"):
        gradients.backward()
    model[1] = second
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"0.bias, 0.weight"):
        gradients.backward()
    assert gradients.epsilon == 0.0
    model[0].requires_grad_(True)
    gradients.backward()


def with_batch_statistics(model, inputs, targets):
    model.eval()
    model[1] = torch.nn.BatchNorm1d(2)  # without parameters of another name or shape, but mixing records
    model[1].weight = model[1].bias = None
    model.register_forward_hook(lambda module, arguments, outputs: outputs.mean(0).expand_as(outputs))


def with_more_records(model, inputs, targets):
    inputs.resize_(800, 2)
    targets.resize_(800)


@pytest.mark.parametrize("meddle", [with_batch_statistics, with_more_records])
def test_what_becomes_of_model_and_records_between_steps_changes_no_gradient(meddle):
    found = []
    for change in (lambda *_: None, meddle):
        torch.manual_seed(0)
        model, (inputs, targets) = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()), coins()
        gradients = private(model, (inputs, targets), seed=1)
        gradients.backward()
        change(model, inputs, targets)
        gradients.backward()
        found.append(torch.cat([p.grad.flatten() for p in model[0].parameters()]))
    assert torch.equal(*found)


def test_of_several_processes_each_would_count_its_own_steps_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(ValueError, match="account is open in one of 4 processes"):
        private(new_model())
    private(new_model(), account=tmp_path / "account.log").backward()


# --- settings ---


def test_what_cannot_be_trained_privately_is_refused_before_anything_is_charged(tmp_path):
    file = tmp_path / "account.log"
    for wrong, words in {
        "epsilon": (0.0, "epsilon is 0"),
        "delta": (float("nan"), "delta is nan; choose a probability"),
        "steps": (2.5, "steps is 2.5"),
        "sampling_rate": (2.0, "sampling_rate is 2"),
        "batch_size": (-1.0, "batch_size is -1"),
        "clipping": ("ghost", "clipping is 'ghost'"),
        "noise_multiplier": (0.2, r"noise_multiplier is 0.2, .* allows \d steps"),
        "device": ("tpu", "device is 'tpu'"),
        "resume": ({"run": ""}, "resume is no state"),
        "seed": (0.5, "seed is 0.5; give a whole number"),
        "augmentation_multiplicity": (257, "augmentation_multiplicity is 257; choose a number from 1 to 256"),
        "augmentation": (torch.flip, "give a fedprivacy.Augmentation"),
    }.items():
        value, message = words
        with pytest.raises(ValueError, match=message):
            private(new_model(), account=file, **{wrong: value})
    with pytest.raises(UnsupportedModelError, match="BatchNorm"):
        private(torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)).train(), account=file)
    with pytest.raises(ValueError, match="clipping_norm is 100"):  # 1e6 fits, and the count with it does not
        private(new_model(), account=file, clipping="adaptive", clipping_norm=1e6)
    with pytest.raises(ValueError, match="steps and noise_multiplier are open"):
        private(new_model(), steps=None)
    with pytest.raises(GuardError, match="cannot be written"):
        private(new_model(), account=tmp_path / "nowhere" / "account.log")
    assert charged(file) == 0


def test_a_noise_multiplier_takes_the_steps_that_the_budget_allows():
    asked = private(new_model(), steps=None, noise_multiplier=2.0)
    assert asked.event.noise_multiplier == 2.0
    each = {"noise_multiplier": 2.0, "sampling_rate": 0.25, "delta": 1e-4}
    assert fp.epsilon(steps=asked.steps, **each) <= 2.0 < fp.epsilon(steps=asked.steps + 1, **each)
    with pytest.raises(ValueError, match=f"the budget allows {asked.steps} steps"):
        private(new_model(), steps=asked.steps + 1, noise_multiplier=2.0)


# --- an account that stays ---


def noise_of_two(one, other, sigma=4.0, batch_size=100):
    return (one - other).std().item() == pytest.approx(2**0.5 * sigma / batch_size, rel=0.05)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_step_whose_release_is_gone_is_charged_again_with_other_noise(tmp_path, seed):
    given = {"account": tmp_path / "account.log", "noise_multiplier": 4.0, "seed": seed}
    model = torch.nn.Linear(200, 50)
    gradients = private(model, LITTLE, **given)
    state, found = gradients.state_dict(), steps_of(gradients, model)
    private(model, LITTLE, resume=state, **given).backward()  # of six, the account keeps four
    assert charged(given["account"]) == 7
    assert all(noise_of_two(gradient(model), earlier) for earlier in found)


@pytest.mark.parametrize("order", ["ababab", "aabbab", "bbbaaa"])
def test_seeded_trainings_that_are_open_on_one_account_never_share_noise(tmp_path, order):
    """Two are opened before either takes a step. Then one goes on from its beginning, and another is new."""
    given = {"account": tmp_path / "account.log", "noise_multiplier": 6.0, "seed": 7, "steps": 3}
    models = {name: torch.nn.Linear(200, 50) for name in "ab"}
    opened, found = {name: private(model, LITTLE, **given) for name, model in models.items()}, []
    lost = opened["a"].state_dict()
    for name in order:
        opened[name].backward()
        found.append(gradient(models[name]))
    for resume in (lost, None):
        model = torch.nn.Linear(200, 50)
        late = private(model, LITTLE, resume=resume, **given)
        late.backward()
        if not any(torch.equal(gradient(model), earlier) for earlier in found):  # else it is given again, for free
            found.append(gradient(model))
    assert charged(given["account"]) == len(found) >= 7
    assert all(noise_of_two(one, other, 6.0) for k, one in enumerate(found) for other in found[:k])


def test_an_older_copy_of_the_account_draws_nothing_anew(tmp_path):
    """A copy from when the step was charged, and not yet released, is put back beside the release."""
    loss, model, file = Watched(), new_model(), tmp_path / "account.log"
    gradients, copies = private(model, loss=loss, account=file), []
    state = gradients.state_dict()
    loss.act = lambda: copies.append(file.read_bytes())
    gradients.backward()
    first = gradient(model)
    file.write_bytes(copies[0])
    private(model, account=file, resume=state).backward()
    assert torch.equal(gradient(model), first) and charged(file) == 1


def test_a_charge_for_one_event_pays_for_no_other(tmp_path):
    model, file = new_model(), tmp_path / "account.log"
    state = private(model, account=file, noise_multiplier=4.0).state_dict()
    careful = private(model, account=file, resume=state)
    hasty = private(model, account=file, resume=state | {"noise_multiplier": 2.0})
    careful.backward()
    hasty.backward()
    assert charged(file) == 2
    assert set(Guard(file, fp.PrivacyBudget(2.0, 1e-4)).history().values()) == {1}


def test_a_state_goes_on_in_its_own_account_alone(tmp_path):
    model = new_model()
    gradients = private(model, account=tmp_path / "one.log")
    gradients.backward()
    state = gradients.state_dict()
    with pytest.raises(ValueError, match=r"which .*other\.log never charged"):
        private(model, account=tmp_path / "other.log", resume=state)
    with pytest.raises(ValueError, match="resume is given, but account is open"):
        private(model, resume=state)
    with pytest.raises(ValueError, match="steps is 7, and the training that goes on has 6"):
        private(model, account=tmp_path / "one.log", resume=state, steps=7)
    with pytest.raises(ValueError, match="resume is no state"):
        private(model, account=tmp_path / "one.log", resume=state | {"taken": -1})
    with pytest.raises(ValueError, match="account is open, so no other process"):
        private(model).state_dict()
