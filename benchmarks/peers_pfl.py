"""Rounds of pfl-research 0.6: federated averaging with central Gaussian privacy. It has no record-level one.

Its metadata asks for dp-accounting below 0.6, which the `bench` extra has, so pip would not install them together. It
runs all the same:

    pip install --no-deps "pfl==0.6.*" "prv-accountant==0.2.*"
"""

from __future__ import annotations

import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.populations import BATCH, CLIPPING_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Setting


class Classifier(nn.Module):
    """A model with the loss and metrics that pfl asks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a batch."""
        return functional.cross_entropy(self.model(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        """Its sum; asked for before the first round alone."""
        return {"loss": Weighted(len(targets) * self.loss(inputs, targets).item(), len(targets))}


class Clock(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Go on."""
        self.marks.append(time.perf_counter())
        return False, Metrics()


def pfl_rounds(setting: Setting, rounds: int) -> list[float]:
    """One resident model, users' tensors in memory, updates clipped and noise added to their sum."""

    def user(number: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(setting.records(number), user_id=str(number))

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(setting.users))))
    privacy = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIPPING_NORM, NOISE_MULTIPLIER))
    classifier, clock = Classifier(setting.model()), Clock()
    central = torch.optim.SGD(classifier.parameters(), lr=1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=setting.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, postprocessors=[privacy]),
        PyTorchModel(classifier, torch.optim.SGD, central),
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE),
        NNEvalHyperParams(local_batch_size=None),
        [clock],
    )
    return clock.marks
