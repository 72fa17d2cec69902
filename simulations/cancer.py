"""Would the model have said the same without Bob?

Five hospitals train a breast-cancer classifier together, each with a privacy budget of epsilon 2. Bob's biopsy lies in
the first hospital. We train with Bob, without Bob, and without any privacy, and compare.

    python simulations/cancer.py
"""

import math

import torch
from rich.console import Console

from fedprivacy.flower import private_client
from fedprivacy.flower.simulation import simulate
from fedprivacy.runs.configuration import resolve
from fedprivacy.runs.folder import RunHistory, new_run_folder
from fedprivacy.server.app import server_app
from fedprivacy.server.recorder import read_model
from fedprivacy.tasks import ShardSource, load_task
from fedprivacy.tasks.cancer import Cancer
from fedprivacy.tasks.shard import Shard

HOSPITALS = 5
SEEDS = range(3)


class WithoutBob(Cancer):
    """The same hospitals, had the first one never seen its first patient, Bob."""

    def shard(self, source: ShardSource) -> Shard:
        """The hospital's records, Bob's left out."""
        shard = super().shard(source)
        return Shard(shard.inputs[1:], shard.targets[1:]) if source.partition_id == 0 else shard


def train(task: str, seed: int) -> tuple[RunHistory, float]:
    """A private run, and how sure its model is that Bob's tumour is benign."""
    out = new_run_folder("cancer")
    config = resolve({"task": task, "clients": HOSPITALS, "seed": seed, "out": out})
    history = simulate(server_app(config=config), private_client(config=config), config)
    bob = load_task("cancer").shard(ShardSource(partition_id=0, num_partitions=HOSPITALS)).inputs[:1]
    return history, read_model(out, load_task("cancer"))(bob).softmax(1)[0, 1].item()


def accuracy_without_privacy() -> float:
    """The same model on all records in one place, no clipping, no noise."""
    task, model = load_task("cancer"), load_task("cancer").model()
    shards = [task.shard(ShardSource(partition_id=i, num_partitions=HOSPITALS)) for i in range(HOSPITALS)]
    inputs, targets = torch.cat([s.inputs for s in shards]), torch.cat([s.targets for s in shards])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.6)
    for _ in range(40):
        optimiser.zero_grad()
        task.loss(model(inputs), targets).mean().backward()
        optimiser.step()
    return task.evaluate(model)["accuracy"]


if __name__ == "__main__":
    say = Console(highlight=False).print
    for seed in SEEDS:
        (history, with_bob), (_, without_bob) = train("cancer", seed), train(f"{__file__}:WithoutBob", seed)
        accuracy = history.summary()["accuracy"]
        say(f"run {seed}: accuracy {accuracy:.3f}; 'Bob is benign' with Bob {with_bob:.3f}, without {without_bob:.3f}")
    spent = history.summary()["clients"][0]
    epsilon, delta = spent["epsilon"], spent["delta"]
    say(f"without any privacy: accuracy {accuracy_without_privacy():.3f}\n")
    say(
        f"In plain words: Bob's hospital spent epsilon {epsilon:.2f} at delta {delta:g}. Whoever sees everything that "
        "it sent, in every round, and asks 'did they use what Bob's record says?', learns no more than from a test "
        f"that changes the odds of the answer by at most a factor of e^{epsilon:.2f} = {math.exp(epsilon):.1f}, and "
        f"gives it away with probability {delta:g}. Whatever the model says, it would most likely have said without "
        "Bob."
    )
