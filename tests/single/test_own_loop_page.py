"""The loops of `docs/how-to/own-loop.md` run as they stand."""

import re
import sys
import types

import pytest
import torch

import fedprivacy as fp
from fedprivacy.guard import Guard
from tests.house import ROOT
from tests.single.coins import LOSS

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/own-loop.md").read_text(), re.DOTALL)
LOOP, GOING_ON, LIGHTNING = BLOCKS


class Module(torch.nn.Module):
    """The part of Lightning's module that the page uses."""

    def optimizers(self):
        return self.trainer.optimizer

    def log(self, name, value, **shown):
        self.trainer.logged.append((name, value))


class Trainer:
    """The part of Lightning's trainer that the page uses, in Lightning's order."""

    def __init__(self, max_steps, devices):
        self.steps, self.logged = max_steps, []

    def fit(self, module, loader):
        module.trainer, self.optimizer = self, module.configure_optimizers()
        module.on_fit_start()
        for number, batch in enumerate(list(loader)[: self.steps]):
            module.training_step(batch, number)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Names of the page before its first line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sides = torch.arange(450) % 2
    return {"inputs": torch.randn(450, 30) + 3.0 * sides[:, None], "targets": sides}


def charged(folder):
    return sum(Guard(folder / "account.log", fp.PrivacyBudget(1, 1e-4)).history().values())


def accuracy(model, page):
    return (model(page["inputs"]).argmax(1) == page["targets"]).double().mean().item()


def test_the_torch_loop_learns_within_its_budget_and_goes_on_from_what_it_kept(page, capsys, tmp_path):
    exec(LOOP, page)
    assert page["gradients"].taken == 50 and 0.99 < page["gradients"].epsilon <= 1.0
    assert accuracy(page["model"], page) > 0.75
    assert capsys.readouterr().out.startswith("50 0.99")
    records, given = (page["inputs"], page["targets"]), {"epsilon": 1, "delta": 1e-4, "steps": 50, "sampling_rate": 0.2}

    def private(_, **kept):
        gradients = fp.PrivateGradients(page["model"], LOSS, records, batch_size=90, **given, **kept)
        gradients.backward()
        return gradients

    exec(GOING_ON.replace("fp.PrivateGradients(...", "private(..."), page | {"private": private})
    assert charged(tmp_path) == 2


@pytest.mark.exhaustive
def test_lightning_takes_its_gradients_by_hand(page, monkeypatch, tmp_path):
    """With Lightning itself where it is installed."""
    try:
        import lightning  # noqa: F401
    except ImportError:
        standing_in = types.SimpleNamespace(LightningModule=Module, Trainer=Trainer)
        monkeypatch.setitem(sys.modules, "lightning", standing_in)
    exec("import torch\nimport fedprivacy as fp\n" + LIGHTNING, page)
    module = page["private"]
    assert module.gradients.taken == 50
    assert accuracy(module.net, page) > 0.75
    checkpoint = {}
    module.on_save_checkpoint(checkpoint)
    module.on_load_checkpoint(checkpoint)
    module.on_fit_start()
    assert module.gradients.left == 0
    assert charged(tmp_path) == 50
