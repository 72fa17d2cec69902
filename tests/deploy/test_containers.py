"""The Compose files, images and charts that `deploy init` writes: the processes of the units, with no more rights."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.federation import free_ports, program
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.runs.records.folder import read_history
from tests.conftest import lacking
from tests.deploy.contained_hosts import ContainedHosts
from tests.deploy.test_sandbox import REPOSITORY, bubblewrap  # noqa: F401
from tests.deploy.written_hosts import HOSPITALS, NGINX, deployment
from tests.postgres import find_programs


@pytest.mark.exhaustive
@pytest.mark.usefixtures("bubblewrap")
def test_a_deployment_trains_in_the_containers_of_its_compose_files(tmp_path):
    """The same processes with the same arguments, accounts and read-only roots; the ledger is in PostgreSQL."""
    if NGINX is None or find_programs() is None:
        lacking("no nginx or no PostgreSQL; install them, for example apt-get install nginx-light postgresql")
    (tmp_path / "records").mkdir()
    np.save(tmp_path / "records" / "points.npy", np.random.default_rng(0).normal(size=(80, 2)))
    out = deployment(tmp_path, sys.prefix, "compose")
    with Supervisor(tmp_path / "logs") as supervisor:
        hosts = ContainedHosts(supervisor, out, (REPOSITORY, sys.prefix))
        hosts.start_server()
        hosts.register(program("flwr"))
        hosts.start_clients(free_ports(len(HOSPITALS)))
        for words in (["run", "mine-app"], ["check", "."]):
            done = subprocess.run(
                hosts.typed([sys.executable, "-m", "fedprivacy", "deploy", *words]),
                env={**os.environ, **hosts.environment},
                cwd=hosts.server,
                check=False,
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        probed = {
            name: hosts.probed(hosts.server, name)
            for name in ("postgresql", "superlink", "superexec", "proxy", "dashboard")
        }
        assert set(probed.values()) == {0}, probed
        assert hosts.probed(hosts.clients[0], "client") == 0
    assert hosts.probed(hosts.server, "superlink") != 0
    (run,) = (hosts.server / "runs").iterdir()
    assert [record.participants for record in read_history(run).rounds[-2:]] == [HOSPITALS, HOSPITALS]
