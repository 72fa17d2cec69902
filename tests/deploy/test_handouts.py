"""`fedprivacy deploy init`: from one description a folder for each party, and nothing that is there is overwritten."""

import re
import shutil
import ssl
import stat
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography import x509

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.app_folder import write_app
from tests.deploy.written_hosts import OWN, command_of
from tests.terminal import CliRunner

MINIMAL = {"host": "fl.example.org", "clients": ["hospital-0", "hospital-1"], "epsilon": 3.0, "delta": 1e-4}


def written(folder, **more):
    """A description in a file, of these settings."""
    lines = [f"{key.replace('_', '-')} = {value!r}" for key, value in (MINIMAL | more).items() if value is not None]
    file = folder / "deployment.toml"
    file.write_text("\n".join(lines))
    return file


def init(*arguments):
    return CliRunner().invoke(deploy_app, ["init", *map(str, arguments)])


def here(folder, **more):
    """A deployment whose hosts are folders of this one."""
    places = {"server_folder": f"{folder}/out/server", "client_folder": f"{folder}/out/clients/{{client}}"}
    done = init(written(folder, **places, **more), "--out", folder / "out")
    assert done.exit_code == 0, done.output
    return folder / "out"


def options_of(unit):
    """Options that a unit starts its program with, each with its value; "" for one that takes none."""
    words = command_of(unit)
    words = [*words[words.index("--") + 1 :], "--"]  # the program that is logged
    return {word: "" if after.startswith("--") else after for word, after in pairwise(words) if word.startswith("--")}


def files_under(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of_its_own(folder):
    """A deployment of a user's own task, whose operator makes the keys."""
    shutil.copy(OWN, folder / "mine.py")
    return here(folder, task="mine.py:Sides", client_keys="operator")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return of_its_own(tmp_path_factory.mktemp("own"))


def test_no_party_s_folder_holds_another_s_secret(own):
    secrets = {name for name, content in files_under(own).items() if b"PRIVATE KEY" in content}
    assert secrets == {
        "ca/ca.key",
        "server/server.key",
        "server/signing.key",
        "clients/hospital-0/hospital-0.key",
        "clients/hospital-1/hospital-1.key",
    }
    assert {stat.S_IMODE((own / name).stat().st_mode) for name in secrets} == {0o600}
    assert {stat.S_IMODE((own / name).parent.stat().st_mode) for name in secrets} == {0o700}


def test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients(own):
    options = options_of(own / "server" / "systemd" / "fedprivacy-superlink.service")
    assert options.keys() == {  # nothing that opens another door, or this one without TLS
        *("--host", "--port", "--database", "--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--isolation"),
    }
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "8000")
    ssl.create_default_context().load_cert_chain(options["--ssl-certfile"], options["--ssl-keyfile"])  # belong together
    authority, certificate = (
        x509.load_pem_x509_certificate(Path(options[name]).read_bytes())
        for name in ("--ssl-ca-certfile", "--ssl-certfile")
    )
    certificate.verify_directly_issued_by(authority)


def test_the_server_s_other_services_answer_this_host_alone_and_ask_the_superlink_over_tls(own):
    units = own / "server" / "systemd"
    assert options_of(units / "fedprivacy-superexec.service") == {
        "--runtime-api-address": "127.0.0.1:8000",
        "--root-certificates": f"{own}/server/ca.crt",
        "--health-server-address": "127.0.0.1:8001",
    }
    assert "--host" not in command_of(units / "fedprivacy-dashboard.service")  # without which it asks for no token


def test_a_client_speaks_to_none_but_the_server_over_tls_and_shows_its_own_key(own):
    folder = own / "clients" / "hospital-1"
    assert options_of(folder / "systemd" / "fedprivacy-client.service") == {
        "--superlink": "fl.example.org:8443",
        "--root-certificates": f"{folder}/ca.crt",
        "--auth-supernode-private-key": f"{folder}/hospital-1.key",
        "--node-config": f"{folder}/node-config.toml",
        "--host": "127.0.0.1",
        "--port": "9094",
        "--isolation": "process",
    }
    assert (folder / "ca.crt").read_bytes() == (own / "server" / "ca.crt").read_bytes()


def test_the_operator_s_commands_speak_to_the_superlink_over_tls(own):
    written = tomllib.loads((own / "server" / "flower-config.toml").read_text())["superlink"]
    connection = {"address": "127.0.0.1:8000", "root-certificates": f"{own}/server/ca.crt", "insecure": False}
    assert written == {"default": "deployment", "deployment": connection}


def test_the_proxy_lets_the_clients_interface_through_and_nothing_else(own):
    """On the SuperLink's port are two interfaces more, without a login."""
    text = re.sub(r"#.*", "", (own / "server" / "nginx.conf").read_text())
    places = dict(re.findall(r"location ([^{]*?) \{\s*(.*?)\s*\}", text, re.DOTALL))
    assert places.keys() == {"/v1/fleet/", "/"}
    assert places["/"] == "return 404;"
    assert re.findall(r"proxy_(?:pass|ssl_(?:verify|name|trusted_certificate)) .*?;", text) == [
        "proxy_pass https://127.0.0.1:8000;",
        "proxy_ssl_verify on;",
        "proxy_ssl_name localhost;",
        f"proxy_ssl_trusted_certificate {own}/server/ca.crt;",
    ]
    assert "proxy_pass" in places["/v1/fleet/"]
    assert re.findall(r"listen (.*?);", text) == ["8443 ssl"]


def test_what_a_service_writes_no_other_account_reads(own):
    units = list(own.rglob("fedprivacy-*.service"))
    services = {unit.stem.removeprefix("fedprivacy-") for unit in units}
    assert services == {"client", "client-superexec", "dashboard", "proxy", "superexec", "superlink"}
    for unit in units:
        assert re.findall(r"^UMask=(.*)$", unit.read_text(), re.MULTILINE) == ["0077"]


def test_an_app_that_was_changed_is_taken_as_it_is(tmp_path):
    app = write_app(tmp_path / "sides", f"{OWN}:Sides").folder
    (app / "sides_app" / "extra.py").write_text("")
    out = here(tmp_path, app="sides")
    assert (out / "server" / "sides" / "sides_app" / "extra.py").exists()
    run = tomllib.loads((out / "server" / "run.toml").read_text())
    assert run["task"] == f"{out}/server/blobs_task.py:Sides"
    assert Path(out / "clients" / "hospital-0" / "blobs_task.py").read_bytes() == OWN.read_bytes()


def test_an_app_that_keeps_its_task_to_itself_cannot_be_allowed(tmp_path):
    app = write_app(tmp_path / "sides", f"{OWN}:Sides").folder
    settings = app / "pyproject.toml"
    settings.write_text(settings.read_text().replace('task = "sides_app.blobs_task:Sides"', 'task = ""'))
    done = init(written(tmp_path, app="sides"), "--out", tmp_path / "out")
    assert done.exit_code == 2 and "has no task" in done.output
    assert not (tmp_path / "out").exists()


def test_a_client_that_comes_later_changes_nothing_of_the_others(tmp_path):
    own = of_its_own(tmp_path)
    before = files_under(own)
    (own.parent / "mine.py").write_text("what the author changed since is not what the others run")
    described = tomllib.loads((own / "deployment.toml").read_text())
    done = init(written(own.parent, **described | {"clients": ["hospital-0", "late"]}), "--out", own)
    assert done.exit_code == 0, done.output
    after = files_under(own)
    assert {name for name in before if after[name] != before[name]} == {"deployment.toml"}
    assert {name for name in after.keys() - before.keys() if not name.startswith("clients/late/")} == {
        "server/clients/late.pub"
    }
    assert after["clients/late/mine.py"] == before["clients/hospital-0/mine.py"]
    assert tomllib.loads(after["deployment.toml"].decode())["clients"] == ["hospital-0", "hospital-1", "late"]


def test_a_folder_that_was_sent_and_deleted_is_not_made_again_with_another_key(tmp_path):
    out = here(tmp_path, client_keys="operator")
    key = (out / "server" / "clients" / "hospital-0.pub").read_bytes()
    shutil.rmtree(out / "clients" / "hospital-0")
    before = files_under(out)
    again = init(tmp_path / "deployment.toml", "--out", out)
    assert again.exit_code == 0 and "Nothing is missing" in again.output
    assert files_under(out) == before and before["server/clients/hospital-0.pub"] == key


def test_a_description_that_says_something_else_is_refused(own):
    before = files_under(own)
    described = tomllib.loads((own / "deployment.toml").read_text())
    done = init(written(own.parent, **described | {"host": "other.example.org"}), "--out", own)
    assert done.exit_code == 2
    assert "host is 'other.example.org', and was 'fl.example.org'" in done.output
    assert files_under(own) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"host": None}, "host is missing"),
        ({"host": "https://fl.example.org"}, "host is 'https://fl.example.org'"),
        ({"clients": ["server"]}, "the other party"),
        ({"hots": "typo"}, "Did you mean host?"),
        ({"task": "digits", "app": "here"}, "leave out one of them"),
        ({"client_folder": "relative"}, "give an absolute path"),
        ({"server_folder": "/srv/{client}"}, "there is one server"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(tmp_path, more, words):
    done = init(written(tmp_path, **more), "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    for place, words in ((out, "holds no deployment"), (out / "thesis.txt", "cannot be written")):
        done = init(written(tmp_path), "--out", place)
        assert done.exit_code == 2 and words in done.output
    assert files_under(out) == {"thesis.txt": b"mine"}
    assert "--example" in init(tmp_path / "missing.toml").output
