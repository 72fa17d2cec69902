"""Hosts of one deployment that go from one Flower to another, one after the other: `make test-upgrades` runs this.

FEDPRIVACY_OTHER_ENVIRONMENT is the environment that they go to, from the one that the tests run in.
"""

import os
import sys

import pytest

from fedprivacy.deploy.processes import Supervisor
from tests.conftest import lacking
from tests.deploy.drill import Drill
from tests.deploy.written_hosts import HOSPITALS

OTHER = os.environ.get("FEDPRIVACY_OTHER_ENVIRONMENT")


@pytest.fixture
def deployment(tmp_path):
    if not OTHER:
        lacking("FEDPRIVACY_OTHER_ENVIRONMENT names no environment with another Flower; make test-upgrades does")
    with Supervisor(tmp_path / "logs") as supervisor:
        yield Drill(supervisor, tmp_path)


def upgrade(deployment, folder, *services):
    """Upgrade as docs/how-to/operate.md says: stop the services, change `environment` in the units, start them."""
    for service in services:
        deployment.hosts.stop(folder, service)
        unit = folder / "systemd" / f"fedprivacy-{service}.service"
        unit.write_text(unit.read_text().replace(f"{sys.prefix}/bin", f"{OTHER}/bin"))
    if folder == deployment.server:
        deployment.hosts.start_server()
    else:
        for service in services:
            deployment.hosts.start(folder, service)


def train(deployment):
    records = deployment.whole_run().rounds
    assert len(records) == 2 and all(set(record.participants) == set(HOSPITALS) for record in records)
    assert not any(record.failures for record in records)
    assert deployment.lost() == 0


def test_hosts_are_upgraded_one_after_the_other_and_train_at_each_step(deployment):
    first, second = map(deployment.client, HOSPITALS)
    train(deployment)
    upgrade(deployment, first, "client", "client-superexec")
    train(deployment)
    upgrade(deployment, deployment.server, "superlink", "superexec")
    train(deployment)
    upgrade(deployment, second, "client", "client-superexec")
    train(deployment)
