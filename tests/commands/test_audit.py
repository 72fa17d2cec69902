"""`fedprivacy audit`, as it is typed: what it says of sound code, of code with a bug, and of what cannot be audited."""

import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest
from safetensors.numpy import save

from fedprivacy import epsilon
from fedprivacy.audit import auditor
from fedprivacy.audit.apps.app_audit import GATES
from fedprivacy.audit.gates import Judged, gate
from fedprivacy.audit.lower_bounds import OWN_RECORD, own_records
from fedprivacy.audit.real_client import NoUpdateError
from tests.commands.running import fedprivacy, unwrapped
from tests.privacy.bugs.swapped import planted
from tests.runs.rounds import falsify, rounds_of

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"
SMALL = ("--task", "cancer", "--clients", "3", "--rounds", "2", "--epsilon", "2", "--seed", "1")
HALF = "half of the noise is added"


@gate("stand-in", proves="Everything is as it should be.", assumes="Nobody looks.")
def stand_in(_):
    return Judged(0.0, [])


@pytest.fixture
def quick(monkeypatch):
    """A gate that asks nothing and one attack: what the others find is tested elsewhere."""
    monkeypatch.setattr(auditor, "GATES", {"stand-in": stand_in})
    monkeypatch.setattr(auditor, "lower_bounds", own_records)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quick")
def test_sound_code_passes_and_a_page_says_what_was_found(tmp_path):
    done = fedprivacy("audit", *SMALL, cwd=tmp_path)
    said = r"Audit of task cancer passed: 1 gate; attacks showed at least epsilon \S+, and at most 2\.00"
    assert re.search(said, unwrapped(done.stdout))
    assert not done.stderr.strip()  # of what clients refuse, too
    quiet = fedprivacy("audit", *SMALL, "--quiet", cwd=tmp_path)
    assert re.fullmatch(r"Audit of task cancer passed: .*\.\n", quiet.stdout) and not quiet.stderr
    page = (tmp_path / "runs" / "audit-1" / "audit.html").read_text()
    assert "Everything is as it should be." in page and "<script" not in page
    links = set(re.findall(r"https?://[^\s\"<]+", page))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.usefixtures("quick")
def test_a_bug_that_an_attack_shows_ends_with_1(tmp_path):
    with planted(HALF):
        done = fedprivacy("audit", *SMALL, "--json", "--out", "found", cwd=tmp_path, code=1)
    found = json.loads(done.stdout)
    assert [gate["passed"] for gate in found["gates"]] == [True] and not found["passed"]
    assert found["lower_bounds"][OWN_RECORD]["epsilon"] > found["epsilon_upper"] == pytest.approx(2.0, abs=0.01)
    assert "More is lost than is stated." in (tmp_path / "found" / "audit.html").read_text()


def test_ctrl_c_ends_an_audit_with_130_and_leaves_nothing(tmp_path, monkeypatch):
    """While attacks go on."""

    def interrupted(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600.0)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(auditor, "GATES", {})
    monkeypatch.setattr(auditor, "lower_bounds", interrupted)
    done = fedprivacy("audit", *SMALL, cwd=tmp_path, code=130)
    assert not done.stdout and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quick", "undrawn")
def test_a_finished_run_is_held_to_its_figures_and_its_model_and_attacked_at_a_new_one_without(tmp_path):
    fedprivacy("simulate", *SMALL, "--out", "run", cwd=tmp_path)
    run, audit = tmp_path / "run", ("audit", "--run", "run", "--seed", "1")
    for model, said in (
        (b"none", "model.safetensors' holds no model"),
        (save({}), "holds another model than its task makes now"),
    ):
        (run / "model.safetensors").write_bytes(model)
        refused = fedprivacy(*audit, cwd=tmp_path, code=2)
        assert said in unwrapped(refused.stderr) and not (run / "audit.html").exists()
    (run / "model.safetensors").unlink()
    assert list(json.loads(fedprivacy(*audit, "--json", cwd=tmp_path).stdout)["lower_bounds"]) == [OWN_RECORD]
    rounds = rounds_of(run)
    rounds[-1]["clients"][1]["epsilon"] /= 2
    falsify(run, rounds)
    found = fedprivacy(*audit, cwd=tmp_path, code=1).stdout
    assert "run: client-1 is shown an epsilon of" in unwrapped(found)


@pytest.mark.exhaustive
def test_an_app_of_others_is_audited_as_the_how_to_says(tmp_path):
    """The adapter of the how-to as it is written, whose two faults the page names, and the same without them."""
    (code,) = re.findall(r"```python\n(# theirs.py\n.*?)```", HOW_TO.read_text(), re.DOTALL)
    (tmp_path / "theirs.py").write_text(code)
    asked = ("audit", "--app", "theirs.py:Theirs", "--seed", "1", "--out", "found")
    told = unwrapped(fedprivacy(*asked, cwd=tmp_path, code=1).stdout)
    assert "Audit of app theirs.py:Theirs FAILED: 2 of 6 gates (release, accounting)" in told
    assert "The exact number of records left without noise: 'num-examples' is 64, and 63" in told
    assert "accounting: Each round begins with a new accountant" in told
    assert "Accounting failed." in (tmp_path / "found" / "audit.html").read_text()
    mended = code.replace(', "num-examples": len(records)', "").replace("steps=10, delta", "steps=10 * rounds, delta")
    (tmp_path / "theirs.py").write_text(mended)
    found = json.loads(fedprivacy(*asked, "--json", cwd=tmp_path).stdout)
    assert found["passed"] and [gate["name"] for gate in found["gates"]] == list(GATES)
    assert found["epsilon_upper"] == pytest.approx(
        epsilon(sampling_rate=0.1, noise_multiplier=1.0, steps=30, delta=1e-5)
    )


@pytest.mark.usefixtures("quick")
def test_a_client_that_answers_no_attack_does_not_pass(tmp_path, monkeypatch):
    def unanswered(*_, **__):
        raise NoUpdateError

    monkeypatch.setattr(auditor, "lower_bounds", unanswered)
    told = unwrapped(fedprivacy("audit", *SMALL, cwd=tmp_path, code=1).stdout)
    assert "FAILED: 1 of 2 gates (attacks)" in told and "no attack could show how much is lost" in told
