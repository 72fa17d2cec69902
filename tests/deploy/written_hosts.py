"""Starts a deployment that `fedprivacy deploy init` wrote, from the very files that it wrote, on this host."""

import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.federation import flower_environment, free_ports, is_healthy, program, write_toml
from tests.terminal import CliRunner

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
BWRAP = shutil.which("bwrap")
REPOSITORY = Path(__file__).parents[2]
OWN = Path(__file__).with_name("blobs_task.py")
WARM = Path(__file__).with_name("warm.py")
HOSPITALS = ("hospital-1", "hospital-2")


def deployment(folder, environment, platform="systemd", **more):
    """A deployment of the blobs, in this folder, with the hospitals' records; `more` settings of its description."""
    (folder / "records").mkdir(exist_ok=True)
    np.save(folder / "records" / "points.npy", np.random.default_rng(0).normal(size=(80, 2)))
    port, superlink_port, superexec_port, runtime_port = free_ports(4)
    shutil.copy(OWN, folder / "mine.py")
    settings = {
        **{"host": "localhost", "port": port, "clients": list(HOSPITALS), "task": "mine.py:Sides", "rounds": 2},
        **{"epsilon": 3.0, "delta": 1e-3, "client-keys": "operator", "environment": str(environment)},
        **{"superlink-port": superlink_port, "superexec-port": superexec_port, "supernode-port": runtime_port},
        "server-folder": f"{folder}/out/server",
        "client-folder": f"{folder}/out/clients/{{client}}",
        "records": f"{folder}/records",
    }
    write_toml(folder / "deployment.toml", {"": settings | more})
    out = folder / "out"
    words = ["init", str(folder / "deployment.toml"), "--out", str(out), "--for", platform]
    done = CliRunner().invoke(deploy_app, words)
    assert done.exit_code == 0, done.output
    return out


def command_of(unit):
    """Program and arguments of a systemd unit."""
    text = unit.read_text().replace("\\\n", " ")
    return shlex.split(re.search(r"^ExecStart=(.*)$", text, flags=re.MULTILINE)[1])


def warm(unit):
    """The command of a unit; a SuperExec forks its apps from a process that has imported their libraries already."""
    words = command_of(unit)
    place = next((place for place, word in enumerate(words) if word.endswith("/flower-superexec")), None)
    return words if place is None else [*words[:place], sys.executable, str(WARM), *words[place + 1 :]]


def environment_of(unit):
    """The environment that a systemd unit sets, with what makes a rehearsal quick."""
    sets = re.findall(r"^Environment=(.*)$", unit.read_text(), flags=re.MULTILINE)
    own = dict(pair.split("=", maxsplit=1) for line in sets for pair in line.split())
    return flower_environment(own.get("FLWR_HOME", unit.parent)) | own


def setting(unit, name):
    """The values of a unit's setting, in order."""
    return [word for line in re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE) for word in line.split()]


def sandboxed(unit, seen):
    """The command of a unit in a sandbox like the unit's own: another account without rights sees a read-only system.

    It has its own /tmp and devices, and sees no other service's processes; `seen` is shown to it all the same.
    """
    shown = [word for path in seen for word in ("--ro-bind", str(path), str(path))]
    written = [word for path in setting(unit, "ReadWritePaths") for word in ("--bind", path, path)]
    hidden = [word for path in setting(unit, "InaccessiblePaths") for word in ("--tmpfs", path.removeprefix("-"))]
    assert setting(unit, "ProtectSystem") == ["strict"] and setting(unit, "CapabilityBoundingSet") == []
    return [
        *(BWRAP, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
        *(*shown, *written, *hidden),
        *("--unshare-user", "--uid", "65534", "--gid", "65534", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"),
        *command_of(unit),
    ]


def without_sandbox():
    """The reason why no sandbox can be made here; empty if one can."""
    if BWRAP is None:
        return "there is no bubblewrap"
    probe = [BWRAP, "--ro-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--unshare-pid", "true"]
    return subprocess.run(probe, check=False, capture_output=True, text=True).stderr


def _offspring(pid):
    """Every process that a process has started, directly or not."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    children = {}
    for child, parent in (map(int, line.split()) for line in listed.splitlines()):
        children.setdefault(parent, []).append(child)
    found = children.get(pid, [])
    return [*found, *(grandchild for child in found for grandchild in _offspring(child))]


def _unit(folder, service):
    return folder / "systemd" / f"fedprivacy-{service}.service"


def _signalled(process, number):
    for pid in (process.pid, *_offspring(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class WrittenHosts:
    """All hosts of a deployment as processes on this one, each with its party's folder as its own.

    Args:
        supervisor: owns the processes.
        folder: of the deployment.
        command: makes the command of a unit.
    """

    def __init__(self, supervisor, folder, command=command_of):
        self._supervisor = supervisor
        self._command = command
        self._running, self._lock = {}, threading.RLock()
        self.server = folder / "server"
        self.clients = sorted((folder / "clients").iterdir())

    def start_server(self):
        """The SuperLink and its SuperExec; and, where there is an nginx, the proxy in front of them."""
        superlink = self.start(self.server, "superlink")
        self.start(self.server, "superexec")
        if NGINX:
            if os.geteuid() == 0:  # its workers would become another account; under a unit they keep the unit's
                file = self.server / "nginx.conf"
                file.write_text("user root;\n" + file.read_text().removeprefix("user root;\n"))
            self.start(self.server, "proxy")
        port = tomllib.loads((self.server / "party.toml").read_text())["superlink-port"]
        trust = ssl.create_default_context(cafile=str(self.server / "ca.crt"))
        self._supervisor.wait_until_ready(superlink, lambda: is_healthy(f"127.0.0.1:{port}", trust), timeout=600)

    def set_up(self):
        """Start the server, register the clients, start them."""
        self.start_server()
        self.register(program("flwr"))
        self.start_clients(free_ports(len(self.clients)))

    def deploy(self, *words):
        """Run a command of `fedprivacy deploy` on the server's host to its end."""
        return subprocess.run(
            self.typed([sys.executable, "-m", "fedprivacy", "deploy", *words]),
            env={**os.environ, **self.environment},
            cwd=self.server,
            check=False,
            capture_output=True,
            text=True,
            timeout=900,
        )

    def start_clients(self, ports):
        """Every SuperNode, each on a port of its own, since they share this host."""
        for client, port in zip(self.clients, ports, strict=True):
            self._move(client, port)
            for service in ("client", "client-superexec"):
                self.start(client, service)

    def _move(self, client, port):
        for service in ("client", "client-superexec"):
            unit = _unit(client, service)
            unit.write_text(re.sub(r"(--port |127\.0\.0\.1:)\d+", rf"\g<1>{port}", unit.read_text()))

    def register(self, flwr):
        """What the server's README.md says for each client, for all at once."""
        commands = [
            self._supervisor.start(
                f"register-{client.name}",
                self.typed(
                    [flwr, *f"supernode register clients/{client.name}.pub deployment --name {client.name}".split()]
                ),
                environment=self.environment,
                directory=self.server,
            )
            for client in self.clients
        ]
        for command in commands:
            assert self._supervisor.wait(command, timeout=600) == 0, command.tail()

    @property
    def environment(self):
        """That of the server's account, which has installed what README.md says."""
        config = self.server / ".flwr" / "config.toml"
        config.write_text((self.server / "flower-config.toml").read_text())
        return environment_of(self.server / "systemd" / "fedprivacy-superlink.service")

    def typed(self, words):
        """A command that the operator types on the server's host."""
        return words

    def _described(self, folder, service):
        """Command and environment of a service."""
        unit = _unit(folder, service)
        return self._command(unit), environment_of(unit)

    def start(self, folder, service):
        """A service of the party in a folder, unless it is running."""
        with self._lock:
            if (running := self._running.get((folder, service))) and running.running:
                return running
            words, environment = self._described(folder, service)
            words = [NGINX if word == "/usr/sbin/nginx" else word for word in words]
            name = f"{folder.name}-{service}"
            process = self._supervisor.start(name, words, environment=environment, directory=folder)
            self._running[folder, service] = process
            return process

    @contextmanager
    def kept_running(self):
        """Start again, after its unit's time, what ends by itself; what `kill` ends stays ended until `start`."""
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done,))
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, done):
        rest = {}  # seconds until an ended service is started again
        while not done.wait(1):
            with self._lock:
                ended = [place for place, process in self._running.items() if not process.running]
                rest = {place: rest.get(place, int(*setting(_unit(*place), "RestartSec"))) - 1 for place in ended}
                for place in (place for place in ended if rest[place] <= 0):
                    self.start(*place)

    def signal(self, folder, service, number):
        """A signal to a service and all that it started."""
        _signalled(self._running[folder, service], number)

    def stop(self, folder, service):
        """SIGTERM, as `systemctl stop` sends it, and wait for the end."""
        process = self._running[folder, service]
        os.kill(process.pid, signal.SIGTERM)
        self._supervisor.wait(process, timeout=120)

    def kill(self, folder, service):
        """SIGKILL to a service and all that it started: no handler runs, no buffer is written."""
        with self._lock:
            process = self._running.pop((folder, service))
        _signalled(process, signal.SIGKILL)
        while process.running:
            time.sleep(0.05)
