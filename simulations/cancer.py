"""Would the model have said the same without Bob?

Five hospitals train a breast-cancer classifier together, each with a privacy budget of epsilon 2. Bob's biopsy lies in
the first hospital. We train with Bob, without Bob, and without any privacy, and compare.

    python simulations/cancer.py
"""

import math

import torch

import fedprivacy as fp

CANCER = fp.tasks.Cancer()
HOSPITALS = 5
SEEDS = range(3)


class WithoutBob(fp.tasks.Cancer):
    """The same hospitals, had the first one never seen its first patient, Bob."""

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """The hospital's records, Bob's left out."""
        shard = super().shard(source)
        return fp.Shard(shard.inputs[1:], shard.targets[1:]) if source.partition_id == 0 else shard


def hospital(number: int) -> fp.Shard:
    """A hospital's records."""
    return CANCER.shard(fp.ShardSource(partition_id=number, num_partitions=HOSPITALS))


def train(task: fp.Task, seed: int) -> tuple[fp.Run, float]:
    """A private run, and how sure its model is that Bob's tumour is benign."""
    run = fp.simulate(task, clients=HOSPITALS, seed=seed)
    return run, run.model()(hospital(0).inputs[:1]).softmax(1)[0, 1].item()


def accuracy_without_privacy() -> float:
    """The same model on all records in one place, no clipping, no noise."""
    model, shards = CANCER.model(), [hospital(number) for number in range(HOSPITALS)]
    inputs, targets = torch.cat([s.inputs for s in shards]), torch.cat([s.targets for s in shards])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.6)
    for _ in range(40):
        optimiser.zero_grad()
        CANCER.loss(model(inputs), targets).mean().backward()
        optimiser.step()
    return CANCER.evaluate(model)["accuracy"]


if __name__ == "__main__":
    for seed in SEEDS:
        (run, with_bob), (_, without_bob) = train(CANCER, seed), train(WithoutBob(), seed)
        accuracy = run.metrics["accuracy"]
        print(
            f"run {seed}: accuracy {accuracy:.3f}; 'Bob is benign' with Bob {with_bob:.3f}, without {without_bob:.3f}"
        )
    epsilon, delta = run.clients[0]["epsilon"], run.clients[0]["delta"]
    print(f"without any privacy: accuracy {accuracy_without_privacy():.3f}\n")
    print(
        f"In plain words: Bob's hospital spent epsilon {epsilon:.2f} at delta {delta:g}. Whoever sees everything that "
        "it sent, in every round, and asks 'did they use what Bob's record says?', learns no more than from a test "
        f"that changes the odds of the answer by at most a factor of e^{epsilon:.2f} = {math.exp(epsilon):.1f}, and "
        f"gives it away with probability {delta:g}. Whatever the model says, it would most likely have said without "
        "Bob."
    )
