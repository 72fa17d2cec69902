"""The ClientApp of this repository: the task that the run names, on this client's own shard.

What it owns (data, device, odometer, randomness) is in `fedprivacy.flower.local`; what can leave it, in
`fedprivacy.flower.release`.
"""

from fedprivacy.flower import private_client

app = private_client()
