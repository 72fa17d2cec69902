"""Clients that train together: the cohort of which private training and the baseline are tested."""

import torch
from torch import nn

from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.tasks import Shard
from fedprivacy.training.cohort import Trainee
from fedprivacy.training.optimizers import SGD, Adam, AdamW
from fedprivacy.values.events import PoissonSampledGaussian

KEY = Keystream.from_seed(7, "cohort")
RECORDS = [40, 0, 1, 23, 64, 40, 40, 12]
RATES = [0.3, 0.3, 0.5, 1.0, 0.1, 0.3, 1e-9, 0.9]
STREAMS = [KEY.of(f"client-{number}") for number in range(len(RECORDS))]
OPTIMIZERS = [SGD(0.5), SGD(0.5, momentum=0.9, weight_decay=0.01), Adam(0.05), AdamW(0.05, 0.1)]


def model_of(name):
    torch.manual_seed(0)
    return {
        "stacked": lambda: nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 4)),
        "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 4, (1, 5)), nn.Flatten()),
        "one by one": lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 5), nn.Flatten()),
    }[name]()


def trainees():
    generator = torch.Generator().manual_seed(0)
    return [
        Trainee(
            shard=Shard(
                torch.randn(records, 5, generator=generator), torch.randint(0, 4, (records,), generator=generator)
            ),
            keystream=keystream,
            mechanism=SampledGaussianSum(PoissonSampledGaussian(rate, 0.5 + number), 0.2 * (1 + number)),
            expected_batch_size=5.0 + number,
            steps=3 if number % 3 else 2,
        )
        for number, (records, rate, keystream) in enumerate(zip(RECORDS, RATES, STREAMS, strict=True))
    ]
