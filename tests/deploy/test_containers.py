"""The Compose files, images and charts that `deploy init` writes: the processes of the units, with no more rights."""

import base64
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.federation import flower_environment
from fedprivacy.deploy.probe import answers
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.deploy.services import LEDGER_IN_POSTGRESQL
from fedprivacy.runs.records.folder import read_history
from tests.conftest import lacking
from tests.deploy.helm import find_helm
from tests.deploy.written_hosts import (
    BWRAP,
    HOSPITALS,
    NGINX,
    REPOSITORY,
    WrittenHosts,
    command_of,
    deployment,
    setting,
)
from tests.postgres import find_programs
from tests.terminal import CliRunner

HELD = {
    ("client", "--host"): ("127.0.0.1", "0.0.0.0"),
    ("client-superexec", "--runtime-api-address"): ("127.0.0.1:PORT", "client:PORT"),
}
"""Options that differ where a client's two services share no loopback interface: on a host, composed."""

DIGEST = "python@sha256:" + 64 * "0"
CLUSTER = ["images.fedprivacy=a@sha256:0", "images.nginx=b@sha256:0", "images.postgresql=c@sha256:0"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One description, for every platform: the folders by its name."""
    folder = tmp_path_factory.mktemp("written")
    folders = {"systemd": deployment(folder, "/srv/environment")}
    for platform in ("compose", "helm"):
        folders[platform] = folder / platform
        words = [folder / "deployment.toml", "--out", folders[platform], "--for", platform]
        done = CliRunner().invoke(deploy_app, ["init", *map(str, words)])
        assert done.exit_code == 0, done.output
    return folders


def parties(out):
    return [out / "server", *sorted((out / "clients").iterdir())]


def services(party):
    return yaml.safe_load((party / "compose.yaml").read_text())["services"]


def as_on_host(service, words, port):
    """A container's command as its unit has it."""
    words = list(words)
    for (name, option), (host, composed) in HELD.items():
        if name == service:
            place = words.index(option) + 1
            assert words[place] == composed.replace("PORT", port)
            words[place] = host.replace("PORT", port)
    return words


def test_a_container_runs_what_its_unit_runs_and_writes_where_it_writes(written):
    for of_units, party in zip(parties(written["systemd"]), parties(written["compose"]), strict=True):
        port = str(tomllib.loads((party / "party.toml").read_text())["runtime-port"])
        containers = services(party)
        for unit in (of_units / "systemd").iterdir():
            name = unit.stem.removeprefix("fedprivacy-")
            container, command = containers[name], command_of(unit)
            if name == "dashboard":  # reached from outside its container, with a token
                command = [word.replace(command[3], LEDGER_IN_POSTGRESQL) for word in command] + ["--host", "0.0.0.0"]
                assert container.pop("environment") == {"FEDPRIVACY_DASHBOARD_TOKEN": "${DASHBOARD_TOKEN:?}"}
            assert as_on_host(name, container["command"], port) == command
            assert container.get("environment", {}) == {
                key: value for pair in setting(unit, "Environment") for key, _, value in [pair.partition("=")]
            }
            targets = {mount["target"] for mount in container["volumes"] if not mount["read_only"]}
            assert targets - {"/run/postgresql"} == set(setting(unit, "ReadWritePaths"))
            assert [str(container["pids_limit"])] == setting(unit, "TasksMax")


def test_a_container_has_no_root_no_capabilities_no_shell_and_sees_only_what_is_there(written):
    for party in parties(written["compose"]):
        for name, made in services(party).items():
            assert (made["read_only"], made["cap_drop"], made["tmpfs"]) == (True, ["ALL"], ["/tmp"])
            assert made["security_opt"] == ["no-new-privileges:true"] and int(made["user"].split(":")[0]) > 1000
            assert made["mem_limit"] and made["pids_limit"] and "privileged" not in made
            assert "healthcheck" in made or name in {"host", "client-superexec"}  # which answer nobody
            assert made.get("healthcheck", {"test": ["CMD"]})["test"][0] == "CMD"
            for mount in made["volumes"]:
                assert (party / mount["source"]).exists() or mount["source"].endswith("/records")


def seeing(party, source):
    """The services that see a file of the host."""
    found = services(party).items()
    return {name for name, made in found for mount in made["volumes"] if mount["source"].endswith(source)}


def test_a_secret_is_seen_by_whom_it_serves(written):
    server, client, _ = parties(written["compose"])
    assert seeing(server, "/signing.key") == {"superexec", "host"}
    assert seeing(server, "/server.key") == {"superlink", "proxy", "host"}
    assert seeing(client, "/hospital-1.key") == {"client", "client-superexec", "host"}
    assert seeing(client, "/records") == {"client-superexec", "host"}
    assert services(client)["host"]["profiles"] == ["by-hand"]  # runs only while somebody types


def test_what_trains_on_records_has_no_way_out_and_the_superlink_no_network_of_its_own(written):
    server, client, _ = parties(written["compose"])
    networks = yaml.safe_load((client / "compose.yaml").read_text())["networks"]
    assert [networks[name] for name in services(client)["client-superexec"]["networks"]] == [{"internal": True}]
    made = services(server)
    on_host = {name for name in made if made[name].get("network_mode") == "service:host"}
    assert on_host == {"superlink", "superexec", "proxy"}
    assert made["postgresql"]["network_mode"] == "none"
    ports = {port for service in made.values() for port in service.get("ports", [])}
    facts = tomllib.loads((server / "party.toml").read_text())
    assert ports == {f"{facts['port']}:{facts['port']}", "127.0.0.1:8050:8050"}


def test_a_trial_is_every_party_s_containers_on_one_machine(written):
    out = written["compose"]
    assert stat.S_IMODE((out / "server" / ".env").stat().st_mode) == 0o600  # has the token of the page
    trial = services(out)
    names = {"": "server"} | {f"{name}-": f"clients/{name}" for name in HOSPITALS}
    for prefix, party in names.items():
        for name, made in services(out / party).items():
            whole = trial[prefix + name]
            assert [(out / mount["source"]).resolve() for mount in whole["volumes"]] == [
                (out / party / mount["source"]).resolve() for mount in made["volumes"]
            ]
            assert [word.replace(prefix, "") for word in whole["command"]] == made["command"] or not prefix
    assert len(trial) == sum(len(services(out / party)) for party in names.values())
    assert trial["host"]["networks"] == {"outside": {"aliases": ["localhost"]}}


def test_the_compose_files_are_valid(written):
    try:
        from compose_spec import PyCompose
    except ImportError:
        lacking("no compose-spec; install the extra test")
    out = written["compose"]
    for file in (out, *parties(out)):
        text = (file / "compose.yaml").read_text()
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", re.sub(r"\$\{\w+:\?.*?\}", DIGEST, text))
        compose = PyCompose.from_json(json.dumps(yaml.safe_load(text)))
        compose.validate_networks()
        compose.validate_volumes()


def test_an_image_is_of_a_base_that_is_named_by_its_digest_and_ends_without_root_and_shell(written):
    for party in (*parties(written["compose"]), *parties(written["helm"])):
        lines = (party / "image" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
        assert "ARG BASE" in lines  # has no default
        assert [line.split()[1] for line in lines if line.startswith("FROM")] == ["${BASE}", "${BASE}"]
        last = lines[max(place for place, line in enumerate(lines) if line.startswith("FROM")) :]
        assert [line for line in last if line.startswith("USER")] == ["USER 10001:10001"]
        assert any(line.startswith("RUN") and line.endswith("/bin/bash /bin/dash /bin/sh") for line in last)
    lint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if lint is None:
        lacking("no hadolint; install the extra test")
    done = subprocess.run([lint, party / "image" / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_pod_runs_what_the_containers_run(written):
    for composed, party in zip(parties(written["compose"]), parties(written["helm"]), strict=True):
        values = yaml.safe_load((party / "values.yaml").read_text())
        containers = {made["name"]: (made, pod) for pod in values["pods"] for made in pod["containers"]}
        assert containers.keys() == services(composed).keys()
        for name, made in services(composed).items():
            in_pod, _ = containers[name]
            words = [word.replace("$(NODE)", "client") for word in (in_pod["command"] or in_pod["args"])]
            assert words + ["--host", "0.0.0.0"] * (name == "dashboard") == made["command"]
            assert {mount["path"]: mount["kind"] == "state" for mount in in_pod["mounts"]} == {
                mount["target"]: not mount["read_only"] for mount in made["volumes"]
            }
            assert f"{in_pod['memory'].removesuffix('Mi')}m" == made["mem_limit"]
            assert made.get("healthcheck", {"test": ["CMD"]})["test"][1:] == in_pod["probe"]


@pytest.fixture(scope="module")
def rendered(written):
    """The objects of each party's chart."""
    helm = find_helm()
    if helm is None:
        pytest.skip("no helm; install it, for example by python -m tests.deploy.helm .venv/bin")
    found = {}
    for party in parties(written["helm"]):
        for words in (["lint", "--strict", party], ["template", "trial", party]):
            settings = [word for value in (*CLUSTER, "records=mine", "backup.claim=tapes") for word in ("--set", value)]
            done = subprocess.run([helm, *words, *settings], check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        found[party.name] = [made for made in yaml.safe_load_all(done.stdout) if made]
    return found


def pods(objects):
    """The pods of a chart, by their component."""
    for made in objects:
        spec = made["spec"]["jobTemplate"]["spec"] if made["kind"] == "CronJob" else made.get("spec", {})
        if made["kind"] in {"StatefulSet", "CronJob"}:
            yield spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"], spec["template"]


def of_kind(objects, kind):
    return [made for made in objects if made["kind"] == kind]


def test_a_chart_s_objects_are_kubernetes(rendered):
    try:
        from kubernetes_validate import latest_version, validate
    except ImportError:
        lacking("no kubernetes-validate; install the extra test")
    for objects in rendered.values():
        kinds = {made["kind"] for made in objects}
        assert kinds == {"ConfigMap", "CronJob", "NetworkPolicy", "PersistentVolumeClaim", "Service", "StatefulSet"}
        for made in objects:
            for release in ("1.30", latest_version()):
                validate(made, release, strict=True)


def test_a_pod_has_no_root_no_token_and_mounts_only_what_it_names(rendered):
    for objects in rendered.values():
        for _, pod in pods(objects):
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False
            context = spec["securityContext"]
            assert context["runAsNonRoot"] and context["seccompProfile"] == {"type": "RuntimeDefault"}
            volumes = {volume["name"] for volume in spec["volumes"]}
            for made in spec["containers"]:
                own = made["securityContext"]
                assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
                assert own["capabilities"] == {"drop": ["ALL"]} and "@sha256:" in made["image"]
                assert made["resources"]["limits"]["memory"]
                assert {mount["name"] for mount in made["volumeMounts"]} <= volumes


def test_a_pod_reaches_what_its_policy_names(rendered):
    for objects in rendered.values():
        policies = of_kind(objects, "NetworkPolicy")
        labels = [made["spec"]["podSelector"]["matchLabels"] for made in policies]
        assert all(made["spec"]["policyTypes"] == ["Ingress", "Egress"] for made in policies)
        for _, pod in pods(objects):
            assert sum(label.items() <= pod["metadata"]["labels"].items() for label in labels) == 1
    of_server = {made["metadata"]["name"]: made["spec"] for made in of_kind(rendered["server"], "NetworkPolicy")}
    assert all("egress" not in spec for spec in of_server.values()) and "ingress" not in of_server["trial-backup"]
    of_client = {made["metadata"]["name"]: made["spec"] for made in of_kind(rendered["hospital-1"], "NetworkPolicy")}
    training = of_client["trial-client-superexec"]
    ((peer,),) = [rule["to"] for rule in training["egress"]]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "client" and "ingress" not in training
    reached = [list(rule["to"][0]) for rule in of_client["trial-client"]["egress"]]
    assert reached == [["ipBlock"], ["namespaceSelector", "podSelector"]]


def test_a_chart_holds_no_key_and_its_volume_outlives_it(rendered, written, tmp_path):
    for party in parties(written["helm"]):
        done = subprocess.run([find_helm(), "package", party, "-d", tmp_path], check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
    for package in tmp_path.glob("*.tgz"):
        with tarfile.open(package) as archive:
            assert not [file.name for file in archive if file.name.endswith(".key") or "image" in file.name]
    for objects in rendered.values():
        (claim,) = of_kind(objects, "PersistentVolumeClaim")
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        (files,) = of_kind(objects, "ConfigMap")
        assert not [text for text in files["binaryData"].values() if b"PRIVATE KEY" in base64.b64decode(text)]


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_probe_tells_who_answers_well_from_who_does_not():
    server = HTTPServer(("127.0.0.1", 0), Answer)
    address = f"127.0.0.1:{server.server_port}"
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = [answers(door) for door in (f"tcp://{address}", f"http://{address}/healthz", f"http://{address}/")]
        server.shutdown()
    assert told == [True, True, False]
    with socket.socket() as bound:  # so that nobody else listens there, nor a connection from there reaches itself
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(server.server_address)
        assert not answers(f"tcp://{address}") and not answers(f"http://{address}/healthz")


# --- a deployment in them ---


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


@pytest.mark.exhaustive
@pytest.mark.usefixtures("bubblewrap")
def test_a_deployment_trains_in_the_containers_of_its_compose_files(tmp_path):
    """The same processes with the same arguments, accounts and read-only roots; the ledger is in PostgreSQL."""
    if NGINX is None or find_programs() is None:
        lacking("no nginx or no PostgreSQL; install them, for example apt-get install nginx-light postgresql")
    out = deployment(tmp_path, sys.prefix, "compose")
    with Supervisor(tmp_path / "logs") as supervisor:
        hosts = ContainedHosts(supervisor, out, (REPOSITORY, sys.prefix))
        hosts.set_up()
        for words in (["check", "."], ["run", "mine-app"]):
            done = hosts.deploy(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        for name in ("postgresql", "superlink", "superexec", "proxy", "dashboard"):
            assert hosts.probed(hosts.server, name) == 0, name
        assert hosts.probed(hosts.clients[0], "client") == 0
    assert hosts.probed(hosts.server, "superlink") != 0
    (run,) = (hosts.server / "runs").iterdir()
    assert [record.participants for record in read_history(run).rounds[-2:]] == [HOSPITALS, HOSPITALS]
