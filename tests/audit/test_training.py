"""`fp.audit_training`, as a script or a notebook uses it: what it finds, shows and refuses."""

import re
from shutil import copytree

import pytest
import torch

import fedprivacy as fp
from fedprivacy.audit import auditor, lower_bounds
from fedprivacy.audit.gates import four_claims
from fedprivacy.audit.lower_bounds import OWN_RECORD
from tests.privacy.bugs.swapped import planted

SMALL = {"clients": 3, "rounds": 2, "epsilon": 2.0, "seed": 1, "progress": False}
HALF = "half of the noise is added"


class Coins(fp.Task):
    recipe = fp.Recipe(rounds=2, delta=1e-3)

    def model(self):
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id)
        sides = torch.randint(2, (60,), generator=generator)
        return fp.Shard(torch.randn(60, 2, generator=generator) + 3.0 * sides[:, None], sides)


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """Some gates and one attack: what each finds is tested elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auditor, "GATES", {"sampling": four_claims.sampling})
    monkeypatch.setattr(auditor, "lower_bounds", lower_bounds.own_records)
    monkeypatch.setattr(lower_bounds, "MOST_STEPS", 25)


@pytest.mark.exhaustive
def test_a_task_of_ones_own_is_audited_and_nothing_is_written_unless_asked_for(tmp_path, capsys):
    found = fp.audit_training(Coins, **SMALL)
    assert found.passed and [gate.name for gate in found.gates] == ["sampling"]
    (bound,) = found.lower_bounds
    assert bound.name == OWN_RECORD and 0.5 < bound.epsilon <= found.epsilon_upper <= 2.0
    assert found.seed == 1 and found.subject == "task object:Coins"
    assert capsys.readouterr() == ("", "") and list(tmp_path.iterdir()) == []
    file = tmp_path / "<b>.py"
    file.write_text("from tests.audit.test_training import Coins")
    page = fp.audit_training(f"{file}:Coins", out="found", **SMALL)._repr_html_()
    assert "&lt;b&gt;.py" in page and "<b>.py" not in page
    assert "Each record joins" in (tmp_path / "found" / "audit.html").read_text()


@pytest.mark.exhaustive
def test_what_is_wrong_is_read_in_a_terminal_and_a_notebook(monkeypatch):
    monkeypatch.setattr(auditor, "GATES", auditor.GATES | {"noise": four_claims.noise})
    with planted(HALF):
        found = fp.audit_training("cancer", **SMALL)
    assert not found.passed and [gate.name for gate in found.failed] == ["noise"]
    text, page = str(found), found._repr_html_()
    assert re.search(r"^Audit of task cancer FAILED: 1 of 2 gates \(noise\)\.$", text, re.MULTILINE)
    assert re.search(r"^noise: The noise of a wide layer is 0\.[45]\d* times what is claimed", text, re.MULTILINE)
    assert re.search(rf"^{OWN_RECORD}: At least epsilon [3-9]\.\d+ is lost, and at most 2\.00 is", text, re.MULTILINE)
    assert re.search(r"^sampling +passed +\S+ +Each record joins", text, re.MULTILINE)
    assert re.search(rf"^{OWN_RECORD} +[3-9]\.\d+ +2\.00$", text, re.MULTILINE)
    assert "<td>noise</td><td>FAILED</td>" in page and "<li><b>noise</b>: The noise of a wide layer" in page
    assert "FAILED: 1 of 2 gates (noise)" in repr(found)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of which tests take copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedprivacy.server.recorder.draw", lambda history, folder: None)
        return fp.simulate("cancer", **SMALL, out=str(tmp_path_factory.mktemp("finished") / "cancer")).folder


@pytest.fixture
def cancer(finished, tmp_path):
    return copytree(finished, tmp_path / "cancer")


@pytest.mark.exhaustive
def test_the_gates_are_shown_while_they_run_and_gone_at_the_end(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    fp.audit_training(Coins, **SMALL | {"progress": True})
    shown = capsys.readouterr()
    assert shown.out == "" and re.search(r"auditing: attacks.*0:00:\d\d", shown.err)
    assert shown.err.rstrip().endswith("\x1b[2K")  # lines are erased


class Silly(Coins):
    def loss(self, outputs, targets):
        raise ValueError("bad loss")


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        ("cancer", {"round": 2, "learning_rate": "x"}, r"round is not .* Did you mean rounds\?\nlearning_rate is 'x'"),
        ("cancer", {"privacy": False}, "privacy is off, and no epsilon is stated"),
        (Silly, {}, r"loss\(\) for client-0 fails: ValueError.*bad loss"),
        (None, {"run": "nowhere"}, "'nowhere' holds no run; name a folder"),
        (None, {"run": ".", "noise_multiplier": 2.0}, "noise_multiplier is set beside run, which is audited with"),
        ("cancer", {"out": "file/found"}, "out is 'file/found', which cannot be written: .* name another folder"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_is_asked(task, settings, said, tmp_path, monkeypatch):
    monkeypatch.setattr(auditor, "GATES", {"sampling": lambda audited: pytest.fail("something was asked")})
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"(?s){said}") as refused:
        fp.audit_training(task, **settings, progress=False)
    assert type(refused.value).__name__ in {"ConfigError", "RunFolderError"}


@pytest.mark.exhaustive
def test_a_run_of_a_machine_with_other_devices_is_audited_on_one_of_this(cancer):
    config = cancer / "config.json"
    config.write_text(config.read_text().replace('"device": "auto"', '"device": "cuda:99"'))
    with pytest.raises(fp.ConfigError, match=r"device is 'cuda:99', but this machine has \d+ GPUs; use auto or cpu"):
        fp.audit_training(run=cancer, progress=False)
    with pytest.raises(fp.ConfigError, match="device is 'gpu'; choose auto, cpu"):
        fp.audit_training(run=cancer, device="gpu", progress=False)
    assert fp.audit_training(run=cancer, device="cpu", seed=1, progress=False).passed


@pytest.mark.exhaustive
def test_a_run_of_another_task_is_not_audited_as_this_one(cancer):
    with pytest.raises(fp.ConfigError, match=r"task is 'cancer' in the configuration, and digits was given beside it"):
        fp.audit_training("digits", run=cancer, progress=False)
