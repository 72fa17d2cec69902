"""Patients with several visits: a task whose unit of privacy is the patient."""

import torch
from torch import nn

import fedprivacy as fp

M = 4
PATIENTS = 60


class Visits(fp.Task):
    """Each hospital has 60 patients with 1 to 6 visits, of whom at most four count."""

    unit = fp.Unit("patient", M)
    recipe = fp.Recipe(
        clients=3, rounds=3, local_steps=2, sampling_rate=0.3, learning_rate=0.5, epsilon=3.0, delta=1e-3
    )
    augmentation = fp.Augmentation(lambda inputs, chances: inputs + 0.1 * (chances - 0.5), draws=1)

    def __init__(self, *, public=True, unit=None, most_rows=M, rows_per_step=None, person_gradient="mean"):
        self.shard_sizes_public, self.nominal_shard_size = public, None if public else PATIENTS
        self.unit, self.most_rows = unit or type(self).unit, most_rows
        self.rows_per_step, self.person_gradient = rows_per_step, person_gradient

    def model(self):
        torch.manual_seed(0)
        return nn.Linear(5, 2)

    def _visits(self, source):
        generator = torch.Generator().manual_seed(source.partition_id)
        visits = torch.randint(1, 7, (PATIENTS,), generator=generator)
        patients = torch.arange(PATIENTS).repeat_interleave(visits)
        sides = torch.randint(2, (PATIENTS,), generator=generator)[patients]
        inputs = torch.randn(len(patients), 5, generator=generator) + sides[:, None]
        return inputs, sides, {} if self.most_rows is None else {"persons": patients, "most_rows": self.most_rows}

    def shard(self, source):
        inputs, sides, persons = self._visits(source)
        return fp.Shard(inputs, sides, **persons)

    def evaluate(self, model):
        records = self.held_out(fp.ShardSource(partition_id=9, num_partitions=9)).by_row()
        return {"accuracy": float((model(records.inputs).argmax(1) == records.targets).double().mean())}

    def held_out(self, source):
        generator = torch.Generator().manual_seed(1000 + source.partition_id)
        sides = torch.randint(2, (300,), generator=generator)
        inputs = torch.randn(300, 5, generator=generator) + sides[:, None]
        return fp.Shard(inputs, sides, persons=torch.arange(300) // 2, most_rows=M)

    def table(self, source):
        inputs, sides, persons = self._visits(source)
        columns = {f"value {number}": values for number, values in enumerate(inputs.T.numpy())}
        return fp.Table(columns | {"side": sides.numpy()}, **persons)

    def partition(self, num_partitions):
        return f"{num_partitions} hospitals with {PATIENTS} patients"
