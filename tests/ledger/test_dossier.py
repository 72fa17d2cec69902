"""The officer's file: everything that a finished run must answer for, in one folder that is whole or not there."""

import hashlib
import html
import json
import re
import sqlite3
from dataclasses import replace

import pytest

import fedprivacy as fp
from fedprivacy.commands.app import app
from fedprivacy.commands.dossier import ABOUT
from fedprivacy.ledger.certificate import Certificate
from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.wording import OUT_OF_SCOPE, TAMPERED_CODE, TRUSTED
from tests import terminal
from tests.flower.visits import PATIENTS, M, Visits
from tests.ledger.acts import tamper

pytestmark = pytest.mark.usefixtures("undrawn")

WORDS = {key: f"{key} of ours, <b> & co" for key in ABOUT} | {"name": "Ward model"}
THREATS = "An insurer gets the model.\n\nHospitals do not trust <each other>."


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs of two clients on one ledger, one of patients, one with user-level noise, one without privacy."""
    home = tmp_path_factory.mktemp("home")
    common = {"progress": False, "signing_key": str(home / "key.pem"), "rounds": 1, "local_steps": 1}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedprivacy.server.recorder.draw", lambda history, folder: None)
        for name, budget in (("first", {"spend": 1.0}), ("second", {})):
            given = common | {"ledger": f"sqlite:///{home / 'shared.db'}", "epsilon": 3.0} | budget
            fp.simulate("cancer", clients=2, out=home / name, **given)
        fp.simulate(Visits(public=False), out=home / "patients", **common)
        whole = common | {"user_level_noise_multiplier": 2.0, "fraction_train": 0.5, "seed": 1}
        fp.simulate("cancer", clients=4, out=home / "whole", **whole)
        fp.simulate("cancer", clients=2, out=home / "baseline", privacy=False, rounds=1, progress=False)
    (home / "about.toml").write_text("".join(f"{key} = {json.dumps(text)}\n" for key, text in WORDS.items()))
    (home / "threats.txt").write_text(THREATS)
    return home


@pytest.fixture
def typed(home, monkeypatch, tmp_path):
    """`fedprivacy ledger dossier` of runs, into a new folder, as a user types it: code, folder, errors."""
    monkeypatch.chdir(home)

    def invoke(*runs, options=(), ledger=None, key="key.pem", out=tmp_path / "dossier"):
        given = [word for run in runs for word in ("--run", run)]
        given += ["--out", out, "--key", key, "--ledger", ledger or f"{runs[0]}/ledger.db", *options]
        code, _, told = terminal.typed(app, "ledger", "dossier", *given)
        return code, out, told

    return invoke


def everything(folder):
    """The text of every file but the model, by its name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.exhaustive
def test_one_folder_holds_all_that_two_runs_of_two_clients_must_answer_for(typed, home):
    words = ["--about", "about.toml", "--threat-model", "threats.txt"]
    code, folder, told = typed("first", "second", options=words, ledger="shared.db")
    assert code == 0, told
    assert "Left open" not in told and f"The dossier is in {folder}." in told
    files = everything(folder)
    sheets = sorted(name for name in files if name.startswith("certificates/"))
    assert len(sheets) == 4 and {"dossier.json", "dossier.html"} < files.keys()
    assert {"models/first/README.md", "models/second/README.md"} < files.keys()
    fields = json.loads(files["dossier.json"], parse_constant=pytest.fail)
    signed = [Certificate.read(files[name]) for name in sheets if name.endswith(".json")]
    assert {each["dataset_id"] for each in fields["certificates"]} == {"cancer/client-0", "cancer/client-1"}
    for certificate in signed:
        assert certificate.runs == 2 and certificate.ran[0]["runs"] == 2
        (stated,) = (each for each in fields["certificates"] if each["dataset_id"] == certificate.dataset_id)
        assert (stated["epsilon"], stated["head"]) == (certificate.epsilon, certificate.head)
    for model in fields["models"]:
        copy = (folder / "models" / model["run"] / "model.safetensors").read_bytes()
        assert copy == (home / model["run"] / "model.safetensors").read_bytes()
        assert model["sha256"] == hashlib.sha256(copy).hexdigest() in files[f"models/{model['run']}/README.md"]
    page = files["dossier.html"]
    assert "<script" not in page and "http" not in re.sub(r"http-equiv|http://www\.w3\.org/\S+", "", page)
    shown = html.unescape(page)
    assert THREATS in shown and WORDS["legal_basis"] in shown and "<b> & co" not in page and "<each" not in page
    assert "Not complete yet" not in page
    assert all(said in shown for said in (TRUSTED, OUT_OF_SCOPE, TAMPERED_CODE))
    assert all(
        f"- {TRUSTED} {TAMPERED_CODE}" in files[f"models/{model['run']}/README.md"] for model in fields["models"]
    )


def test_a_dossier_of_patients_speaks_of_patients_and_tells_no_private_size(typed):
    code, folder, told = typed("patients")
    assert code == 0, told
    files = everything(folder)
    fields = json.loads(files["dossier.json"])
    unit = f"patient (at most {M} rows)"
    assert {each["unit"] for each in fields["certificates"]} == {unit} == {model["unit"] for model in fields["models"]}
    assert "of the patients that were used, at most" in files["dossier.html"]
    assert "seeded" not in files["dossier.html"]
    assert "with several records" not in files["dossier.html"] + files["models/patients/README.md"]
    sizes = re.compile(rf"(?<![\w.#-])({PATIENTS}|{3 * PATIENTS})(?![\w.%-])")
    told = [
        name
        for name, text in files.items()
        if sizes.search(re.sub(r"<svg.*?</svg>|<style.*?</style>", "", text, flags=re.S))
    ]
    assert told == []


@pytest.mark.exhaustive
def test_what_may_be_published_of_a_run_with_user_level_noise_does_not_tell_who_took_part(typed):
    code, folder, told = typed("whole")
    assert code == 0, told
    files = everything(folder)
    fields = json.loads(files["dossier.json"])
    assert len({each["epsilon"] for each in fields["certificates"]}) >= 1 and fields["models"][0]["epsilon"] is None
    published = files["models/whole/README.md"]
    assert "each client as a whole" in published and "largest loss" not in published
    page = files["dossier.html"]
    assert "not for publication with the models" in page and "A simulation with a known seed protects nobody" in page
    assert "It protects nobody." in published


@pytest.mark.exhaustive
def test_audits_and_their_verdicts_are_told_and_one_that_proves_more_comes_first(typed, home):
    run_id = json.loads((home / "patients" / "config.json").read_text())["run_id"]
    sound = AuditResult(1.7e9, "canaries", "", 0.417, 0.95, 3.0, 1e-5, "PLD", "server")
    assert "No audit of these runs" in (typed("patients")[1] / "dossier.html").read_text()
    record_audits(f"sqlite:///{home / 'patients' / 'ledger.db'}", run_id, [sound])
    page = (typed("patients", out=home / "once")[1] / "dossier.html").read_text()
    assert "verdict of 1 attack, the last on 2023-11-14" in page and "0.41" in page and "consistent" in page
    assert "An audit found more loss" not in page
    record_audits(f"sqlite:///{home / 'patients' / 'ledger.db'}", run_id, [replace(sound, at=1.8e9, lower=9.0)])
    _, folder, _ = typed("patients", out=home / "twice")
    assert "An audit found more loss than is stated" in (folder / "dossier.html").read_text()
    assert [audit["verdict"] for audit in json.loads((folder / "dossier.json").read_text())["audits"]] == [
        "consistent",
        "violated",
    ]


REFUSED = {
    "no run": (["nothing"], {}, "run is 'nothing' holds no run; name"),
    "no privacy": (["baseline"], {}, "has no privacy: nothing answers for its model"),
    "no model": (["begun"], {}, "has no model.safetensors yet; it is written when the run ends"),
    "another ledger": (
        ["first"],
        {"ledger": "patients/ledger.db"},
        "holds no charge; name the run's ledger (--ledger).",
    ),
    "twice": (["first", "first"], {"ledger": "shared.db"}, "run is 'first' twice"),
    "no key": (["patients"], {"key": "nobody.pem"}, "key is 'nobody.pem', where there is none"),
    "folder": (["patients"], {"out": "first"}, "out is 'first', which is there already; name a new folder"),
    "about": (["patients"], {"about": 'colour = "blue"'}, "with 'colour'; it takes name, organisation"),
    "no TOML": (["patients"], {"about": "name ="}, "which is no TOML"),
    "empty": (["patients"], {"about": 'name = " "'}, "name is ' '; give a text, or leave it out"),
    "threats": (["patients"], {"threat": "\n"}, "which is empty; say who could harm whom"),
    "no threats": (["patients"], {"threat": None}, "cannot be read (No such file or directory)"),
}


def there(folder):
    """All files, but those that SQLite keeps beside a database that is open."""
    return sorted(path for path in folder.rglob("*") if not path.name.endswith(("-shm", "-wal")))


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_written(why, typed, home, tmp_path):
    runs, given, words = REFUSED[why]
    given = dict(given)
    options = []
    if "about" in given:
        (tmp_path / "words.toml").write_text(given.pop("about"))
        options = ["--about", tmp_path / "words.toml"]
    if "threat" in given:
        if (text := given.pop("threat")) is not None:
            (tmp_path / "threat.txt").write_text(text)
        options = ["--threat-model", tmp_path / "threat.txt"]
    if why == "no model":
        (home / "begun").mkdir()
        for name in ("config.json", "run.db"):
            (home / "begun" / name).write_bytes((home / "first" / name).read_bytes())
    before = there(home)
    folder = given.setdefault("out", tmp_path / "dossier")
    code, _, told = typed(*runs, options=options, **given)
    assert code == 2 and words in " ".join(told.split()) and "Traceback" not in told
    assert there(home) == before and (why == "folder" or not (tmp_path / "dossier").exists()), folder


def test_nothing_is_written_from_a_ledger_that_was_changed(typed, home, tmp_path):
    copied = tmp_path / "changed.db"
    with sqlite3.connect(home / "shared.db") as shared, sqlite3.connect(copied) as copy:
        shared.backup(copy)
    tamper(f"sqlite:///{copied}", "UPDATE charges SET steps = steps + 1")
    code, folder, told = typed("first", ledger=copied)
    assert code == 1 and "is not what the journal says" in told and not folder.exists()
