"""A hospital's host: its folder with a node configuration, a task, records, a key and a guard."""

from pathlib import Path

import numpy as np

from fedprivacy._support.signing import server_public_key
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower.client.local import own_shard
from tests.deploy import blobs_task
from tests.flower.asked import SERVER

RECORDS = 83

TASKS = (
    Path(blobs_task.__file__).read_text()
    + '''

import fedprivacy

class Hidden(Sides):
    """A private number of records."""

    shard_sizes_public, nominal_shard_size = False, 50


class Counted(Sides):
    """Its records have columns."""

    def table(self, source):
        inputs = self.shard(source).inputs.numpy()
        return fedprivacy.Table({"x": inputs[:, 0], "y": inputs[:, 1]})


class Standardised(Counted):
    """Its inputs are standardised."""

    standardise = fedprivacy.ask.mean_and_scale({"x": (-3, 3), "y": (-3, 3)})


class Guessing(Sides):
    """Its reader finds out the type of a column from all of its cells."""

    def shard(self, source):
        import pandas

        rows = pandas.read_csv(source.folder / "people.csv")
        sides = torch.tensor((rows.side == 1).to_numpy()).long()
        return fedprivacy.Shard(torch.tensor(rows[["x", "y"]].to_numpy()).float(), sides)


class Telling(Hidden):
    """Prints what it reads, and raises with it."""

    def shard(self, source):
        shard = super().shard(source)
        print("SECRET", shard.inputs.tolist())
        return shard

    def loss(self, outputs, targets):
        print("SECRET", targets.tolist())
        if len(targets) and bool((outputs.detach().abs() > 1e6).any()):
            raise ValueError(f"SECRET {outputs.tolist()}")
        return super().loss(outputs, targets)
'''
)


def home_of(folder, /, task="Sides", records=RECORDS, **changed):
    """Write a host's folder, and return it; with other lines in its node configuration (None: without)."""
    (folder / "records").mkdir(parents=True)
    np.save(folder / "records" / "points.npy", np.random.default_rng(5).normal(size=(records, 2)))
    (folder / "hospital_tasks.py").write_text(TASKS)
    given = {
        "task": f"{folder / 'hospital_tasks.py'}:{task}",
        "folder": str(folder / "records"),
        "epsilon": 3.0,
        "delta": 1e-3,
        "guard": str(folder / "guard.log"),
        "key": str(write_client_key(folder, "hospital").private_key),
        "server-key": server_public_key(SERVER),
        "client-id": "hospital",
        "device": "cpu",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in given.items()
        if value is not None
    ]
    (folder / "node-config.toml").write_text("\n".join(lines))
    own_shard.cache_clear()  # a command reads the records anew
    return folder


def content_of(folder):
    """Every file of a folder with its bytes and the time of its last change, and every folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }
