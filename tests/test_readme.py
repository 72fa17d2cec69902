"""What the README promises exists and works."""

import re
import subprocess
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedprivacy.flower import InProcessGrid
from tests.flower.blobs import Blobs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_five_lines_make_a_flower_app_private(tmp_path):
    server, client = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {"app": ServerApp(), "FedAvg": FedAvg, "MyTask": Blobs}
    exec(server, server_names := dict(names))
    exec(client, client_names := dict(names))
    assert isinstance(client_names["app"], ClientApp)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    run_config = {"clients": 3, "rounds": 2, "epsilon": 2.0, "ledger": ledger}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    server_names["app"](InProcessGrid(client_names["app"], 3, run_config), context)
    from fedprivacy.ledger import Ledger

    accounts = Ledger(ledger).accounts([f"blobs/client-{i}" for i in range(3)])
    assert [account.rounds for account in accounts.values()] == [2, 2, 2]


def test_every_link_to_a_file_leads_somewhere():
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_make_target_that_is_named_exists():
    for target in sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))):
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
