"""Certificates: what they state follows from the journal, whoever changes one is found out, and one sheet holds it."""

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import fedprivacy as fp
from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.accounting import pld
from fedprivacy.accounting.histories import person_history
from fedprivacy.accounting.risk import RATES, Risk
from fedprivacy.commands.app import app
from fedprivacy.commands.certificate_page import certificate_html
from fedprivacy.ledger import Allowance, Answer, ChargeState, Ledger
from fedprivacy.ledger.certificate import Certificate, CertificateError, certify
from fedprivacy.ledger.charges import budget_changes
from fedprivacy.ledger.journal import canonical
from fedprivacy.runs.records.store import RunRecording
from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import UNNAMED, PoissonSampledGaussian
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.unit import Unit
from tests import terminal
from tests.conftest import lacking
from tests.house import ROOT
from tests.ledger.acts import ALLOWANCE, EVENT, EXPIRES, KEY, OTHER, QUESTION, ask, unlimited
from tests.printing import find_browser, printed_sheets
from tests.runs.store.made_up import facts
from tests.runs.witnessed import Host

PUBLIC = server_public_key(KEY)
LONG = "x-rays-of-the-northern-region/university-hospital-hamburg-eppendorf-radiology-department-2027"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A command of `fedprivacy ledger`: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: terminal.typed(app, "ledger", *arguments)


def test_a_certificate_states_what_the_journal_adds_up_to(filled):
    first, second = certify(filled, (), PUBLIC)
    assert (first.dataset_id, second.dataset_id) == ("a", "b")
    assert first.epsilon == pld.epsilon({EVENT: 10, OTHER: 3}, 1e-5)
    assert (first.budget, first.delta, first.filter, first.expires) == (3.0, 1e-5, "fixed-mechanism", None)
    assert (first.runs, first.rounds, first.steps, first.charges) == (2, 3, 13, 4)
    assert (first.receipts, first.unanswered, first.relation, first.unit) == (1, 2, "add-or-remove-one", "record")
    assert (first.last_steps, first.runs_left) == (1, 0)  # two mechanisms under the fixed filter: nothing more
    assert (first.entries, first.signed) == (12, 12)
    assert (second.budget, second.expires, second.epsilon) == (1.0, "2100-01-01", pld.epsilon({EVENT: 2}, 1e-5))


def test_a_certificate_tells_its_own_rounds_from_what_only_the_client_s_book_counted(filled):
    filled.reconcile("a", {("elsewhere", EVENT): 21, ("nowhere", EVENT): 4})
    certificate, _ = certify(filled, (), PUBLIC)
    assert (certificate.runs, certificate.rounds, certificate.steps) == (2, 3, 38)
    assert (certificate.claimed_runs, certificate.claimed_steps) == (3, 29)
    page = " ".join(certificate_html(certificate, "a.json").split())
    assert "<p>9 steps in 3 rounds of 2 runs. 29 steps in 3 runs that the client's own book counted" in page
    filled.reconcile("a", {(UNNAMED, EVENT): 40})  # the ledger holds 35 of this event
    certificate, _ = certify(filled, (), PUBLIC)
    assert (certificate.claimed_runs, certificate.claimed_steps, certificate.steps) == (3, 34, 43)


def test_nothing_is_certified_of_a_ledger_that_lacks_what_a_run_beside_it_signed(filled, typed, tmp_path):
    """It was put back from an older copy: it verifies, and says less than the client's guard."""
    host = Host(tmp_path)
    filled.close()
    host.copy("ledger", "old")
    host.run("signed", "ledger")
    server_key(tmp_path / "signing.key")
    command = ("certify", "--ledger", tmp_path / "ledger.db", "--key", tmp_path / "signing.key", "--out")
    assert typed(*command, tmp_path / "before")[0] == 0
    host.copy("old", "ledger")
    code, _, err = typed(*command, tmp_path / "after")
    assert code == 1 and "does not hold entry 14" in err and "an older copy was put back" in err
    code, out, err = typed("verify", "--ledger", tmp_path / "ledger.db")
    assert code == 1 and not out and "does not hold entry 14" in err
    assert not (tmp_path / "after").exists()


def test_a_client_s_claims_before_the_first_run_hide_no_unit_of_privacy(url):
    ledger = Ledger(url)
    ledger.open_budgets({"a": ALLOWANCE})
    ledger.reconcile("a", {(UNNAMED, EVENT): 2, ("elsewhere", EVENT): 1})
    (before,) = certify(ledger, (), PUBLIC)
    assert before.unit == "record"  # nobody said another
    page = " ".join(certificate_html(before, "a.json").split())
    assert "3 steps in 1 run that the client's own book counted and this ledger did not" in page
    ledger.open_run("run", "a", "2 parts", Unit("patient", 8))
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 1}, unlimited)
    (certificate,) = certify(ledger, (), PUBLIC)
    assert certificate.unit == "patient (at most 8 rows)" and certificate.steps == 4


def test_a_certificate_of_a_budget_that_has_expired_leaves_no_run_and_states_every_budget_until_then(filled):
    filled.set_budget("b", PrivacyBudget(50.0, 1e-5), EXPIRES, "so much more")
    assert certify(filled, ["b"], PUBLIC)[0].runs_left > 0
    filled.set_budget("b", PrivacyBudget(50.0, 1e-5), datetime.now(UTC) - timedelta(seconds=1), "it ends now")
    (ended,) = certify(filled, ["b"], PUBLIC)
    assert (ended.runs_left, ended.shortage) == (0, "The budget has expired: nothing is granted any more.")
    reasons = [None, "consent was renewed", "so much more", "it ends now"]
    assert [given["reason"] for given in ended.budgets] == reasons
    for last, told in ((2, 0), (3, 1), (8, 1), (9, 2), (12, 2), (13, 3), (14, 4), (None, 4)):
        assert [change.reason for change in budget_changes(filled.database, ["b"], last)["b"]] == reasons[:told]


def test_what_was_signed_is_read_back_and_every_changed_field_is_found_out(filled):
    certificate, _ = certify(filled, (), PUBLIC)
    text = certificate.signed_with(KEY)
    assert Certificate.read(text, [PUBLIC]) == certificate
    fields = json.loads(text)
    for name, value in fields.items():
        changed = {"a": "b"} if isinstance(value, list) else f"{value}0" if isinstance(value, str) else 0.5
        with pytest.raises(CertificateError):
            Certificate.read(json.dumps(fields | {name: changed}))
        with pytest.raises(CertificateError):
            Certificate.read(json.dumps({other: fields[other] for other in fields if other != name}))
    for nonsense in ("", "[]", "{}", "null", '{"signature": 3}', "[" * 10**5):
        with pytest.raises(CertificateError, match="no certificate"):
            Certificate.read(nonsense)


def test_a_certificate_that_states_one_percent_less_than_its_history_or_a_question_costs_is_refused(filled):
    ask(filled)
    certificate, _ = certify(filled, (), PUBLIC)
    asked = [fields | {"epsilon": 0.99 * fields["epsilon"]} for fields in certificate.questions]
    less = {"history": {"epsilon": 0.99 * certificate.epsilon}, "question": {"questions": tuple(asked)}}
    of_two, *others = certificate.by_rows
    less["2 rows of a person"] = {"by_rows": (of_two | {"epsilon": 0.99 * of_two["epsilon"]}, *others)}
    assert Certificate.read(certificate.signed_with(KEY)) == certificate
    for what, changed in less.items():
        with pytest.raises(CertificateError, match=f"{what} costs? more than the epsilon of"):
            Certificate.read(replace(certificate, **changed).signed_with(KEY))


def test_a_certificate_states_what_an_attacker_finds_from_the_whole_curve_and_no_less_can_be_signed(filled):
    first, second = certify(filled, (), PUBLIC)
    for rows in (1, 2, 5, 10):
        risk = Risk.of_history(person_history({EVENT: 10, OTHER: 3}, rows), 1e-5)
        stated = {test["accused"]: test["found"] for test in first.risks if test["rows"] == rows}
        assert stated == dict(zip(RATES, risk.found(RATES).tolist(), strict=True))
    page = certificate_html(first, "x.json")
    assert Risk.of_history({EVENT: 10, OTHER: 3}, 1e-5).sentence() in page and "Of persons with 2 records" in page
    assert first.software == f"fedprivacy {fp.__version__}" and first.software in page
    for at, stated in enumerate(first.risks):
        less = list(first.risks)
        less[at] = stated | {"found": 0.999 * stated["found"]}
        with pytest.raises(CertificateError, match="an attacker finds more than the share of"):
            Certificate.read(replace(first, risks=tuple(less)).signed_with(KEY))
    none = replace(first, risks=({"rows": 1, "accused": 1.5, "found": 2.0},))
    with pytest.raises(CertificateError, match="an attacker finds more"):
        Certificate.read(none.signed_with(KEY))
    assert len(second.risks) == 12


def test_a_certificate_states_the_digest_of_what_ran_as_a_shell_computes_it(filled):
    """The journal holds the program that began each run; of a run that a guard alone knows it holds none."""
    first, _ = certify(filled, (), PUBLIC)
    recipe = "find fedprivacy -type f ! -name '*.pyc*' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    digest = subprocess.check_output(recipe, shell=True, text=True, cwd=ROOT).split()[0]
    assert first.digest == digest
    assert first.ran == ({"software": first.software, "digest": digest, "runs": 2},)
    page = certificate_html(first, "x.json")
    assert digest in page and "the same program in 2 runs" in page
    filled.reconcile("a", {("elsewhere", EVENT): 1})
    earlier, now = certify(filled, ["a"], PUBLIC)[0].ran
    assert (earlier["software"], earlier["digest"], earlier["runs"], now["runs"]) == ("", "", 1, 2)


def test_a_certificate_states_what_audits_of_its_runs_proved_and_when(filled, typed, url, tmp_path):
    sound = AuditResult(1.7e9, "canaries", "", 0.417, 0.95, 3.0, 1e-5, "PLD", "server")
    first, _ = certify(filled, (), PUBLIC)
    assert first.audits == () and "no audit of its runs is in the server&#39;s records" in certificate_html(first, "x")
    server_key(tmp_path / "key.pem")
    for run_id in ("two", "another"):
        RunRecording(url, facts(run_id)).close()
    record_audits(url, "two", [sound, replace(sound, attack="weaker", lower=0.2)])
    record_audits(url, "another", [replace(sound, lower=9.0)])
    assert typed("certify", "a", "--key", "key.pem", "--out", "out", "--ledger", url)[0] == 0
    (machine,) = (tmp_path / "out").glob("*.json")
    read = Certificate.read(machine.read_text())
    assert [(each["run"], each["at"], each["lower"]) for each in read.audits] == [
        ("two", "2023-11-14T22:13:20+00:00", 0.417),
        ("two", "2023-11-14T22:13:20+00:00", 0.2),
    ]
    said = "2 attacks on its runs, the last on 2023-11-14, showed a loss of at least ε 0.41 by a training with their "
    said += "settings, for which at most 3.00 is stated: "
    assert f"{said}consistent with what is stated" in machine.with_suffix(".html").read_text()
    broken = replace(sound, lower=3.5)
    (violated,) = certify(filled, ["a"], PUBLIC, audits={"two": [sound, broken]})
    assert "for which at most 3.00 is stated: more than is stated" in certificate_html(violated, "x.json")


def test_the_commands_write_a_page_and_its_json_and_verify_it(typed, filled, url, tmp_path):
    key = tmp_path / "keys" / "server.pem"
    code, _, error = typed("certify", "a", "--key", key, "--out", "certificates", "--ledger", url)
    assert code == 2 and "where there is none; name the one that signs" in error
    assert not (tmp_path / "certificates").exists()
    signer = server_public_key(server_key(key))
    code, _, error = typed("certify", "--key", key, "--out", "certificates", "--ledger", url)
    assert code == 0, error
    assert error.startswith("2 certificates in certificates. Next: fedprivacy ledger verify-certificate certificates/a")
    files = sorted(path.name for path in (tmp_path / "certificates").iterdir())
    assert len(files) == 4 and {name.rsplit(".", 1)[1] for name in files} == {"html", "json"}
    machine = tmp_path / "certificates" / files[1]
    code, out, _ = typed("verify-certificate", machine, "--signer", signer)
    assert code == 0 and out.startswith("Genuine: a has spent epsilon 2.95 of 3 at delta 1e-5, says key")
    assert typed("verify-certificate", machine, "--signer", PUBLIC)[0] == 1
    machine.write_text(machine.read_text().replace('"runs": 2', '"runs": 1'))
    code, out, error = typed("verify-certificate", machine)
    assert (code, out) == (1, "") and "it was changed" in error
    assert typed("verify-certificate", tmp_path / "nowhere.json")[0] == 2
    assert typed("certify", "nobody", "--key", key, "--out", "c", "--ledger", url)[0] == 2


def test_names_that_no_file_could_bear_get_files_of_their_own(typed, url, tmp_path):
    names = ["x/../../y", "x-y", "x y", "\u00fc" * 200]
    Ledger(url).open_budgets(dict.fromkeys(names, Allowance(PrivacyBudget(3.0, 1e-5), "adaptive")))
    server_key(tmp_path / "key.pem")
    assert typed("certify", "--key", "key.pem", "--out", "out", "--ledger", url)[0] == 0
    assert len(list((tmp_path / "out").iterdir())) == 8
    others = {path.name for path in tmp_path.iterdir() if not path.name.startswith("ledger.db")}
    assert others == {"key.pem", "out"}


def worst_case(url):
    """A long name, more mechanisms and more questions than a sheet holds, of two lines each."""
    ledger = Ledger(url)
    ledger.open_budgets({LONG: Allowance(PrivacyBudget(3.0, 1e-5), "fixed-then-adaptive")})
    for number in range(1, 9):
        ledger.reserve(Attempt("run", number), PoissonSampledGaussian(0.1, 40.0 + number), {LONG: 7}, unlimited)
        asking = Attempt(f"questions-{number}", 1)
        ledger.reserve(asking, QUESTION, {LONG: 1}, unlimited)
        ledger.settle(asking, [LONG], ChargeState.COMMITTED)
        ledger.keep_answers(asking, [Answer(LONG, 0, canonical({"kind": "x", "column": "y" * 200}), 20.0, (number,))])
    return certify(ledger, [LONG], PUBLIC)[0]


@pytest.mark.exhaustive
def test_the_page_holds_what_the_certificate_does_and_runs_nothing(url):
    certificate = worst_case(url)
    page = certificate_html(certificate, "x.json")
    for words in (
        LONG,
        certificate.head,
        PUBLIC,
        "And 4 mechanisms more",
        "And 4 questions before",
        "8 were never confirmed",
    ):
        assert words in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert "&lt;script&gt;" in certificate_html(certificate, "<script>")


@pytest.mark.exhaustive
def test_the_page_prints_on_one_sheet(url, tmp_path):
    if find_browser() is None:
        lacking("no chromium on PATH; install it, for example apt-get install chromium")
    (tmp_path / "page.html").write_text(certificate_html(worst_case(url), f"{LONG}.json"))
    assert printed_sheets(tmp_path / "page.html") == 1
