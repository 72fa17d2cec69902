"""Ten hospitals train a digit classifier. None tells the server more about a scan than epsilon 3 allows.

    python simulations/digits.py

Change what you like: every setting of `fedprivacy simulate --help-all` is a keyword.
"""

import fedprivacy as fp

run = fp.simulate("digits", clients=10, epsilon=3.0, seed=0)

for row in run.rounds[9::10]:
    print(f"round {row['round']:3d}: accuracy {row['accuracy']:.3f}, largest epsilon {row['max_epsilon']:.4f}")
for client in run.clients:
    print(f"{client['client_id']}: epsilon {client['epsilon']:.4f} after {client['steps']} steps, {client['state']}")
print(f"Figure and report are in {run.folder}.")
