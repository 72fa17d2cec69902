"""The ClientApp of this repository, on this client's own shard: in a simulation the task that the run names, in a
deployment one that the data owner's node configuration allows.

What the data owner decides is in `fedprivacy.flower.client.node`; what the client owns (data, device, guard,
randomness) in `fedprivacy.flower.client.local`; what can leave it in `fedprivacy.flower.client.release`.
"""

from fedprivacy.flower import private_client

app = private_client()
