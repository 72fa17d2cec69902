"""Heads and tails, a model for them, and private gradients of it."""

import torch

import fedprivacy as fp
from fedprivacy.guard import Guard

LOSS = torch.nn.CrossEntropyLoss(reduction="none")
BUDGET = {"epsilon": 2.0, "delta": 1e-4, "steps": 6, "sampling_rate": 0.25, "batch_size": 100}


def coins(records=400):
    generator = torch.Generator().manual_seed(0)
    sides = torch.randint(2, (records,), generator=generator)
    return torch.randn(records, 2, generator=generator) + 4.0 * sides[:, None], sides


def new_model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 2)


def private(model, data=None, loss=LOSS, **changed):
    return fp.PrivateGradients(model, loss, coins() if data is None else data, **BUDGET | changed)


def train(model=None, loss=LOSS, **changed):
    given = BUDGET | {"data": coins(), "learning_rate": 0.5, "progress": False} | changed
    return fp.train(new_model() if model is None else model, loss, **given)


def flat(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def charged(file):
    """The steps that an account was charged."""
    return sum(Guard(file, fp.PrivacyBudget(BUDGET["epsilon"], BUDGET["delta"])).history().values())
