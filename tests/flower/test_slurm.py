"""The batch script of docs/how-to/populations.md: which programs it starts on which machines, and how it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.processes import all_end

SCRIPT = Path(__file__).parents[2] / "docs/how-to/cluster.sbatch"
SRUN = """
echo "srun $@" >> calls
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
PROGRAMS = {
    "scontrol": 'printf "%s\\n" first second third',
    "hostname": "echo 10.0.0.1 192.168.0.1",
    "srun": SRUN,
    "ray": 'echo "ray $$" >> running; exec sleep 60',
    "python": 'echo "python $2 $3" >> calls; cat > waiting.py; until [ "$(wc -l < running)" = 2 ]; do sleep 0.1; done',
    "fedprivacy": 'echo "fedprivacy $@" >> calls; exit 3',
}
"""Stand-ins for what the script calls; `exit 3` is what no other of them ends with."""


@pytest.fixture
def job(tmp_path):
    """Starts the script as Slurm would, with stand-ins for programs, or others."""
    started = []

    def start(**others):
        for name, lines in (PROGRAMS | others).items():
            (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{lines}\n")
            (tmp_path / name).chmod(0o755)
        own = {"SLURM_JOB_NODELIST": "[...]", "SLURM_JOB_ID": "12345", "SLURM_CPUS_PER_TASK": "16"}
        environment = os.environ | own | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", SCRIPT, "--clients", "1000", "--out", "a folder"]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def calls(folder):
    file = folder / "calls"  # not there before the first one
    return file.read_text().splitlines() if file.exists() else []


def test_every_machine_joins_and_the_run_decides_how_the_job_ends(job, tmp_path):
    assert job().wait(timeout=120) == 3
    head, others = sorted(line for line in calls(tmp_path) if line.startswith("srun"))
    assert "--nodes=1 --nodelist=first ray start --head --node-ip-address=10.0.0.1 --port=22345 " in head
    assert "--nodes=2 --exclude=first ray start --address=10.0.0.1:22345 " in others
    assert all("--num-cpus=16" in line and "--block" in line for line in (head, others))
    assert [line for line in calls(tmp_path) if not line.startswith("srun")] == [
        "python 10.0.0.1:22345 3",
        "fedprivacy simulate --ray-address 10.0.0.1:22345 --clients 1000 --out a folder",
    ]
    compile((tmp_path / "waiting.py").read_text(), "waiting.py", "exec")
    cluster = [int(line.split()[1]) for line in (tmp_path / "running").read_text().splitlines()]
    assert len(cluster) == 2 and all_end(cluster)  # with the job


def test_the_signal_before_the_time_is_over_is_the_run_s(job, tmp_path):
    """Which ends in order, while the cluster is still there; the script waits for that."""
    ending = (
        "trap 'sleep 0.3; echo in order >> calls; exit 143' TERM; echo here >> calls; while true; do sleep 0.05; done"
    )
    script = job(fedprivacy=ending)
    while not (tmp_path / "calls").exists() or "here" not in calls(tmp_path):
        assert script.poll() is None
        time.sleep(0.02)
    script.send_signal(signal.SIGTERM)
    assert script.wait(timeout=120) == 143
    assert calls(tmp_path)[-1] == "in order"


def test_machines_that_do_not_join_end_the_job(job, tmp_path):
    assert job(python="exit 1").wait(timeout=120) == 1
    assert not [line for line in calls(tmp_path) if line.startswith("fedprivacy")]
