"""Starts a deployment from its Compose files, each service in a sandbox like its container."""

import os
import re
import subprocess
import tomllib

import yaml

from fedprivacy.deploy.federation import flower_environment
from tests.deploy.written_hosts import BWRAP, WrittenHosts
from tests.postgres import find_programs


def composed(folder, service):
    """A service of a Compose file."""
    filled_in = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines() if line[0] != "#")
    text = re.sub(r"\$\{(\w+):[?-].*?\}", lambda found: filled_in[found[1]], (folder / "compose.yaml").read_text())
    return yaml.safe_load(text)["services"][service]


def contained(folder, service, seen):
    """A sandbox like a container of a Compose file, but for the network: its mounts, its account, and no shell.

    `seen` is shown to it all the same: what its image would hold, at places that its own /tmp would hide.
    """
    made = composed(folder, service)
    assert made["read_only"] and made["cap_drop"] == ["ALL"]
    user, group = made["user"].split(":")
    accounts = folder.parent / f"{folder.name}.passwd"
    accounts.write_text(f"fedprivacy:x:{user}:{group}::/:/usr/sbin/nologin\n")
    shells = ["/usr/bin/dash", "/usr/bin/bash"] if str(made["image"]).startswith("fedprivacy:") else []
    return [
        *(BWRAP, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"),
        *(word for path in made["tmpfs"] for word in ("--tmpfs", path)),
        *(word for path in seen for word in ("--ro-bind", str(path), str(path))),
        *("--ro-bind", str(accounts), "/etc/passwd"),
        *(word for shell in shells for word in ("--ro-bind", "/dev/null", shell)),
        *(
            word
            for mount in made["volumes"]
            for word in (
                "--ro-bind" if mount["read_only"] else "--bind",
                str(folder / mount["source"]),
                mount["target"],
            )
        ),
        *("--unshare-user", "--uid", user, "--gid", group, "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"),
        *(["--unshare-net"] if made.get("network_mode") == "none" else []),
        *("--chdir", made["working_dir"]),
    ]


class ContainedHosts(WrittenHosts):
    """All hosts of a deployment from their Compose files, each service in a sandbox like its container.

    Args:
        supervisor: owns the processes.
        folder: of the deployment.
        seen: paths that every container sees: what its image holds.
    """

    def __init__(self, supervisor, folder, seen):
        super().__init__(supervisor, folder)
        self._seen = seen

    def start_server(self):
        """As on hosts; with the database and the page."""
        self._make_database()
        self.start(self.server, "postgresql")
        super().start_server()
        self.start(self.server, "dashboard")

    def _make_database(self):
        """Make the database, as the image of PostgreSQL does at its first start."""
        made = self._described(self.server, "postgresql")[1]
        options = ["--username", made["POSTGRES_USER"], "--auth", made["POSTGRES_HOST_AUTH_METHOD"]]
        for words, typed in (
            (["initdb", *options, made["POSTGRES_INITDB_ARGS"]], ""),
            (["postgres", "--single", "postgres"], f"CREATE DATABASE {made['POSTGRES_DB']}\n"),
        ):
            box = contained(self.server, "postgresql", self._seen)
            done = subprocess.run(
                [*box, *words], env=made, input=typed, check=False, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def probed(self, folder, service):
        """Exit code of a service's probe, in its container."""
        test = composed(folder, service)["healthcheck"]["test"]
        assert test[0] == "CMD"  # needs no shell
        environment = self._described(folder, service)[1]
        box = contained(folder, service, self._seen)
        return subprocess.run([*box, *test[1:]], env=os.environ | environment, check=False, timeout=60).returncode

    def typed(self, words):
        return [*contained(self.server, "host", self._seen), *words]

    @property
    def environment(self):
        return self._described(self.server, "host")[1]

    def _move(self, client, port):
        """Give a SuperNode another port, and its SuperExec the address under which it finds it here."""
        made = client / "compose.yaml"
        old = str(tomllib.loads((client / "party.toml").read_text())["runtime-port"])
        made.write_text(made.read_text().replace(old, str(port)).replace("client:" + str(port), f"127.0.0.1:{port}"))

    def _described(self, folder, service):
        made = composed(folder, service)
        own = made.get("environment", {})
        quick = flower_environment(own.get("FLWR_HOME", folder))
        return (
            [*contained(folder, service, self._seen), *made["command"]],
            quick | own | {"PATH": f"{own.get('PATH', quick['PATH'])}:{find_programs()}"},
        )
