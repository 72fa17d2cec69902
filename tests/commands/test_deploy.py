"""`fedprivacy deploy`: keys are made once, and mistakes are one line."""

import re
from pathlib import Path

from typer.testing import CliRunner

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.keys import write_keys

REPOSITORY = Path(__file__).parents[2]


def test_the_command_line_makes_keys_and_reports_mistakes(tmp_path):
    run = CliRunner().invoke
    arguments = ["keys", "--out", str(tmp_path), "--host", "fl.example.org", "--client", "a", "--client", "b"]
    first = run(deploy_app, arguments)
    assert first.exit_code == 0
    assert "keep offline" in first.output
    assert (tmp_path / "clients" / "b" / "client.key").exists()
    again = run(deploy_app, arguments)
    assert again.exit_code == 2
    assert "exists already" in again.output
    own = run(deploy_app, ["client-key", "hospital-3", "--out", str(tmp_path)])
    assert own.exit_code == 0
    assert "hospital-3.pub" in own.output


def test_the_command_line_makes_the_signing_key_once_and_shows_its_public_half(tmp_path):
    command = ["signing-key", str(tmp_path / "deep" / "signing.key")]
    first, again = (CliRunner().invoke(deploy_app, command) for _ in range(2))
    assert first.exit_code == again.exit_code == 0 and first.output == again.output
    (public,) = re.findall(r'server-key = "([0-9a-f]{64})"', first.output)
    assert public == server_public_key(server_key(tmp_path / "deep" / "signing.key"))
    assert (tmp_path / "deep" / "signing.key").stat().st_mode & 0o777 == 0o600
    assert CliRunner().invoke(deploy_app, ["signing-key", __file__]).exit_code == 2


def test_the_demo_command_fails_when_the_demo_fails(tmp_path):
    write_keys(tmp_path / "keys")
    result = CliRunner().invoke(deploy_app, ["demo", "--app", str(REPOSITORY), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "exists already" in result.output
