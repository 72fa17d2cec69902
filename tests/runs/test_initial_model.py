"""A run may begin with a public model; a file that is none is refused before anything is spent."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedprivacy as fp
from fedprivacy.runs.settings.configuration import ConfigError
from tests.flower.blobs import Blobs, plan_of


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)


class Frozen(Blobs):
    """A body that does not train, and so is no part of what crosses."""

    def model(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        model[0].requires_grad_(False)
        return model


def test_what_does_not_train_is_the_task_s_own():
    head = {"2.weight": torch.ones(2, 4), "2.bias": torch.zeros(2)}
    save_file(head | {"0.weight": torch.full((4, 2), 9.0)}, "public.safetensors")
    run = fp.simulate(
        Frozen(), clients=3, rounds=1, learning_rate=1e-9, initial_model="public.safetensors", progress=False
    )
    model = run.model()
    assert torch.equal(model[0].weight, Frozen().model()[0].weight)
    torch.testing.assert_close(model[2].weight, head["2.weight"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"no tensors", "cannot be read"),
        ({"weight": torch.zeros(2, 2)}, "for 'bias' the task's model wants shape .2., where it has none"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, "wants shape .2, 2., where it has .2, 3."),
    ],
    ids=["missing", "damaged", "lacking", "another shape"],
)
def test_a_file_that_is_not_this_model_s_is_refused(content, says, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / "public.safetensors").write_bytes(content)
    elif content:
        save_file(content, tmp_path / "public.safetensors")
    with pytest.raises(ConfigError, match=says):
        plan_of(Blobs(), initial_model="public.safetensors")
