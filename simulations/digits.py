"""Ten hospitals train a digit classifier. None tells the server more about a scan than epsilon 3 allows.

    python simulations/digits.py

Change what you like: every argument of `resolve` is a setting of `fedprivacy simulate --help`.
"""

from rich.console import Console

from fedprivacy.commands.terminal import client_table
from fedprivacy.flower import private_client
from fedprivacy.flower.simulation import simulate
from fedprivacy.runs.configuration import resolve
from fedprivacy.runs.folder import new_run_folder
from fedprivacy.server.app import server_app

config = resolve({"task": "digits", "clients": 10, "epsilon": 3.0, "seed": 0, "out": new_run_folder("digits")})
history = simulate(server_app(config=config), private_client(config=config), config)

console = Console()
for record in history.rounds[9::10]:
    accuracy = record.metrics["accuracy"]
    console.print(f"round {record.round:3d}: accuracy {accuracy:.3f}, largest epsilon {record.max_epsilon:.4f}")
console.print(client_table(history))
console.print(f"Figure and report are in {config.out}.")
