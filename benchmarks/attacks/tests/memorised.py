"""A task that can only be memorised: scanned digits, each called a random digit; and trainings of it."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.attacks.trainers import Training
from fedprivacy.tasks import Shard, Task

TRAINING = Training(steps=120, sampling_rate=0.5, batch_size=75.0, learning_rate=0.01)


class Misnamed(Task):
    """300 scans of 8 x 8 pixels as rows, brightness 0 to 1; what they are called tells nothing of what they show."""

    dataset = "misnamed"

    def __init__(self, records=300):
        scans, _ = load_digits(return_X_y=True)
        names = np.random.default_rng(0).integers(10, size=records)
        self.records = Shard(torch.from_numpy(scans[:records] / 16.0).float(), torch.from_numpy(names))

    def model(self):
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def shard(self, source):
        return self.records
