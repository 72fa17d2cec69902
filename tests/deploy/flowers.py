"""Hosts of one deployment with two versions of Flower, as during an upgrade: `make test-flowers` runs this.

FEDPRIVACY_OTHER_ENVIRONMENT is the environment with the other version, beside the one that the tests run in.
"""

import os
import sys

import pytest

from fedprivacy.deploy.processes import Supervisor
from tests.deploy.drill import Drill
from tests.deploy.written_hosts import HOSPITALS

OTHER = os.environ.get("FEDPRIVACY_OTHER_ENVIRONMENT", "")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    with Supervisor(folder / "logs") as supervisor:
        yield Drill(supervisor, folder)


def upgrade(deployment, folder, *services, to):
    """What docs/how-to/operate.md says: stop the services, change `environment` in the units, start them."""
    for service in services:
        deployment.hosts.stop(folder, service)
        unit = folder / "systemd" / f"fedprivacy-{service}.service"
        for environment in (OTHER, sys.prefix):
            unit.write_text(unit.read_text().replace(f"{environment}/bin", f"{to}/bin"))
    if folder == deployment.server:
        deployment.hosts.start_server()
    else:
        for service in services:
            deployment.hosts.start(folder, service)


def trained(deployment):
    records = deployment.whole_run().rounds
    assert len(records) == 2 and all(set(record.participants) == set(HOSPITALS) for record in records)
    assert not any(record.failures for record in records)
    assert deployment.lost() == 0


def test_hosts_are_upgraded_one_after_the_other(deployment):
    first, second = map(deployment.client, HOSPITALS)
    trained(deployment)
    upgrade(deployment, first, "client", "client-superexec", to=OTHER)
    trained(deployment)
    upgrade(deployment, deployment.server, "superlink", "superexec", to=OTHER)
    trained(deployment)
    upgrade(deployment, second, "client", "client-superexec", to=OTHER)
    trained(deployment)
