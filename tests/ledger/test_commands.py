"""`fedprivacy ledger` as an operator types it: one clear text for each problem, an exit code, and no password shown."""

import hashlib
import itertools
import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.accounting import FILTERS, pld
from fedprivacy.commands.app import app
from fedprivacy.commands.certificate_page import certificate_html
from fedprivacy.commands.guard import guard_app
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.guard import Guard
from fedprivacy.ledger import Allowance, Ledger, default_url
from fedprivacy.ledger.certificate import certify
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests import terminal
from tests.ledger.acts import ALLOWANCE, COUNT, EVENT, MEAN, OTHER, STRANGER, ask, journal_of, tamper, unlimited

GENTLE = PoissonSampledGaussian(0.1, 5.0)
COLUMNS = ["60", "200"]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ledger.md"


@pytest.fixture
def url(tmp_path):
    """Commands say the same of both databases."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run(monkeypatch):
    """A command: (exit code, output, errors)."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments, command=app: terminal.typed(command, *arguments)


@pytest.fixture
def ledger(run, url):
    """A command of `fedprivacy ledger` on a ledger."""
    return lambda *arguments: run("ledger", *arguments, "--ledger", url)


def succeeded(done):
    code, out, err = done
    assert code == 0, err
    return out


def refused(done, code, *words):
    """Check that a command ended with a code, and said one thing, without a traceback, in these words."""
    assert done[0] == code
    assert done[1] == ""
    assert done[2].startswith("error: ")
    assert "Traceback" not in done[2]
    for word in words:
        assert word in done[2]


def test_show_lists_what_every_dataset_has_spent_in_json_and_in_a_table(ledger, filled):
    found = json.loads(succeeded(ledger("show", "--json")))["datasets"]
    assert [d["dataset_id"] for d in found] == ["a", "b"]
    assert [(d["steps"], d["charges"], d["open"], d["budget"]) for d in found] == [(13, 4, 2, 3.0), (2, 1, 1, 1.0)]
    assert [d["epsilon"] for d in found] == [pld.epsilon({EVENT: 10, OTHER: 3}, 1e-5), pld.epsilon({EVENT: 2}, 1e-5)]
    assert [d["expires"] for d in found] == ["", "2100-01-01"]
    charges = json.loads(succeeded(ledger("show", "--dataset", "a", "--json")))["charges"]
    assert [(c["run_id"], c["round"], c["steps"], c["state"]) for c in charges] == [
        ("one", 1, 5, "committed"),
        ("one", 2, 3, "reserved"),
        ("one", 0, 4, "committed"),
        ("two", 1, 1, "reserved"),
    ]
    assert "Its last 4 of 4 charges" in succeeded(ledger("show", "--dataset", "a"))
    refused(ledger("show", "--dataset", "nobody"), 2, "knows no dataset 'nobody'", "lists them.\n")
    filled.open_budgets(dict.fromkeys(["digits/hospital-1", "digits/hospital-11"], ALLOWANCE))
    refused(ledger("show", "--dataset", "hospital-1"), 2, "Did you mean digits/hospital-1?\n")
    page = succeeded(ledger("show"))
    assert "server's view" in page
    assert "Accountant PLD" in page
    assert re.search(r"^\W*a\W.*\b13\b.*\b4\b.*\b2\b.*never", page, re.MULTILINE)
    assert re.search(r"^\W*b\W.*\b1e-5\b.*\b2100-01-01", page, re.MULTILINE)


@pytest.fixture
def long_named(url):
    opened = Ledger(url)
    name = "x-rays-of-the-northern-region/university-hospital-hamburg-eppendorf-radiology-department-0"
    opened.open_run("spring", "x-rays", "own folders")
    opened.open_budgets({name: Allowance(PrivacyBudget(3.0, 1e-5), "fixed-then-adaptive")})
    for round in (1, 2):
        opened.reserve(Attempt("spring", round), GENTLE, {name: 30}, unlimited)
    return name


@pytest.mark.parametrize("columns", COLUMNS)
def test_no_name_and_no_question_is_cut_however_narrow_the_terminal_is(ledger, long_named, url, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    (found,) = json.loads(succeeded(ledger("show", "--json")))["datasets"]
    whole = FILTERS["fixed-then-adaptive"](PrivacyBudget(3.0, 1e-5)).quota({}, GENTLE)
    assert (found["last_steps"], found["runs_left"]) == (60, whole // 60 - 1)
    opened = Ledger(url)
    opened.open_budgets({"c": ALLOWANCE})
    ask(opened, asked="c")
    page = succeeded(ledger("show"))
    assert long_named in re.sub(r"[\s│]+", "", page)
    assert "meanofage,from0" in re.sub(r"[\s│]+", "", page[page.index("What was asked") :])
    assert "…" not in page
    assert all(len(line) <= int(columns) for line in page.splitlines())
    assert re.search(r"\d runs?\b" if columns == "200" else r"allows \d+ more runs? like", page)
    if columns == "60":
        assert re.search(r"left: epsilon 2\.8\d, and no run has trained yet", page)


def test_show_lists_what_was_asked_of_all_and_of_one(ledger, filled):
    ask(filled)
    ask(filled, Attempt("questions-0f8c2b7e11d34c06", 1), "a")
    found = json.loads(succeeded(ledger("show", "--json")))["questions"]
    assert [(each["run_id"], each["number"], each["question"], each["answered"]) for each in found] == [
        ("questions-spring", 0, MEAN, 2),
        ("questions-spring", 1, COUNT, 2),
        ("questions-0f8c2b7e11d34c06", 0, MEAN, 1),
        ("questions-0f8c2b7e11d34c06", 1, COUNT, 1),
    ]
    fields = {"mechanism": "poisson-sampled-gaussian", "sampling_rate": 1.0, "noise_multiplier": 20.0}
    assert found[0]["charged"] == [fields | {"relation": "add-or-remove-one", "datasets": 2}]
    assert len(json.loads(succeeded(ledger("show", "--dataset", "b", "--json")))["questions"]) == 2
    page = succeeded(ledger("show", "--dataset", "a"))
    assert re.search(r"questions-0f8c2b7e\W+1\W+1\W+1\W+1\W+20\W+\d+\W+committed", page)
    assert len(re.findall(r"mean of age, from 0 to 120\W+28\.28\W+1 of 1\W+\d{4}-\d\d-\d\d", page)) == 2
    assert "2 of 2" in succeeded(ledger("show"))


def test_verify_says_what_it_proved_and_what_no_one_signed(ledger, filled, url):
    out = succeeded(ledger("verify"))
    assert out.startswith("Nothing was changed: 12 entries, 6 charges.\nEntries up to 12 of 12 are signed, by key")
    counts = {"entries": 12, "charges": 6, "answers": 0, "heads": 1, "signed": 12}
    assert json.loads(succeeded(ledger("verify", "--json"))) == counts | {"hash": journal_of(filled)[-1][2]}
    refused(ledger("verify", "--signer", server_public_key(STRANGER)), 1, "which is none of those named")
    tamper(url, "DELETE FROM checkpoints")
    assert succeeded(ledger("verify")).startswith("Consistent, and not signed: 12 entries, 6 charges.")


def test_a_signed_head_that_was_kept_elsewhere_finds_a_cut_off_end(ledger, run, filled, url, tmp_path):
    key, witness = tmp_path / "server.pem", tmp_path / "witness.json"
    key.write_text("no key")
    refused(ledger("sign", key), 2, "holds no readable private key")
    key.unlink()
    Ledger(f"sqlite:///{tmp_path / 'empty.db'}").close()
    refused(run("ledger", "sign", key, "--ledger", tmp_path / "empty.db"), 2, "has no entry yet; nothing was signed")
    assert ledger("sign", key, "--out", witness)[0] == 0
    signer = server_public_key(server_key(key))
    assert ledger("verify", "--witness", witness)[0] == 0
    assert json.loads(witness.read_text())["public_key"] == signer
    tamper(url, "DELETE FROM checkpoints", "DELETE FROM journal WHERE number = 12")
    refused(ledger("verify", "--witness", witness), 1, "entry 12 is missing, and a signed head covers it")


def test_a_ledger_moves_by_export_verify_and_import(ledger, run, filled, tmp_path):
    file, other, again = tmp_path / "export.jsonl", tmp_path / "other.db", tmp_path / "again.jsonl"
    code, out, err = ledger("export", file)
    assert (code, out) == (0, "")
    assert f"12 entries in {file}. Next: fedprivacy ledger verify" in err
    assert "12 entries" in succeeded(run("ledger", "verify", file))
    refused(run("ledger", "import", file, "--ledger", tmp_path / "nowhere" / "other.db"), 2, "there is no folder")
    assert "12 entries are in" in run("ledger", "import", file, "--ledger", other)[2]
    assert run("ledger", "export", again, "--ledger", other)[0] == 0
    assert again.read_bytes() == file.read_bytes()
    assert succeeded(ledger("export")).encode() == file.read_bytes()
    refused(ledger("export", file), 2, "is there already; name a new file")
    refused(ledger("import", file), 2, "has entries already; import into a new one")


def test_a_file_that_is_missing_or_of_another_kind_is_named_with_the_remedy(ledger, run, filled, guard, tmp_path):
    nowhere = tmp_path / "nowhere"
    for command in (("verify",), ("import",), ("reconcile", "a"), ("verify", "--witness")):
        refused(ledger(*command, nowhere), 2, f"there is no file '{nowhere}'; name one that is")
    (file := tmp_path / "ok.py").write_text("print(1)\n")
    for command in ("verify", "import"):
        done = run("ledger", command, file, "--ledger", tmp_path / "new.db")
        refused(done, 2, f"'{file}' is no exported ledger; name a file that 'fedprivacy ledger export' wrote.")
    (itself := tmp_path / "itself.db").write_bytes(b"SQLite format 3\0")
    refused(
        ledger("verify", itself), 2, f"'{itself}' is a ledger itself, not an exported one; write --ledger before it"
    )
    assert not (tmp_path / "new.db").exists()
    for line in ("no JSON", "[]", '{"kind": "charge", "run_id": "x", "event": 1}'):
        file.write_text(guard.read_text() + line + "\n")
        refused(ledger("reconcile", "a", file), 2, "line 4 of", "fedprivacy guard export")
    assert len(journal_of(filled)) == 12


@pytest.fixture
def guard(run, tmp_path):
    """The export of a client's guard that spent more in run one than the ledger says."""
    log, file = tmp_path / "guard.log", tmp_path / "guard.jsonl"
    client = Guard(log, PrivacyBudget(30.0, 1e-5), "adaptive")
    client.charge(Attempt("one", 1, 1), EVENT, 5)
    client.charge(Attempt("one", 3, 1), EVENT, 9)
    client.charge(Attempt("one", 2, 1), OTHER, 2)
    file.write_text(succeeded(run("export", log, command=guard_app)))
    return file


def test_the_larger_of_both_counts_is_charged_once(ledger, run, filled, guard):
    code, page, err = ledger("reconcile", "a", guard)
    assert code == 0
    assert re.search(r"\bone\b.*\b0\.1\b.*\b14\b.*\b9\b.*\b5\b", page)
    assert re.search(r"\bone\b.*\b0\.2\b.*\b2\b.*\b3\b.*\b0\b", page)
    assert "5 steps were charged to a." in err
    assert filled.accounts(["a"])["a"].history == {EVENT: 15, OTHER: 3}
    assert "0 steps were charged to a." in ledger("reconcile", "a", guard)[2]
    assert filled.accounts(["a"])["a"].history == {EVENT: 15, OTHER: 3}
    client = Guard(guard.with_name("guard.log"), PrivacyBudget(30.0, 1e-5))
    client.charge(Attempt("new", 1, 1), OTHER, 1, elsewhere={EVENT: 21, OTHER: 4})  # this ledger has lost six since
    guard.write_text(succeeded(run("export", guard.with_name("guard.log"), command=guard_app)))
    code, page, err = ledger("reconcile", "a", guard)
    assert re.search(r"\bnot named\b.*\b0\.1\b.*\b7\b.*\b1\b.*\b6\b", page)
    assert "7 steps were charged to a." in err
    assert filled.accounts(["a"])["a"].history == {EVENT: 21, OTHER: 4}
    assert "0 steps were charged to a." in ledger("reconcile", "a", guard)[2]
    code, _, err = ledger("reconcile", "nobody", guard)
    assert code == 2 and "knows no dataset 'nobody'" in err
    verify_ledger(filled)


def granted(url, **options):
    """Steps that a new run gets for dataset b under the budget in force, though it asks for another."""
    ledger = Ledger(url)
    in_force = ledger.open_budgets({"b": ALLOWANCE})["b"]

    def quota(_, history, allowance):
        assert allowance == in_force
        return FILTERS[allowance.filter](allowance.budget).quota(history, EVENT)

    steps = ledger.reserve(Attempt("new", 1), EVENT, {"b": 10**6}, quota, **options).get("b", 0)
    ledger.close()
    return steps


def most(budget):
    """The most steps of EVENT that a budget allows dataset b, which has taken two."""
    return FILTERS["fixed-mechanism"](budget).quota({EVENT: 2}, EVENT)


def test_a_budget_that_expired_grants_nothing_until_it_is_renewed(ledger, filled, url):
    set_b = ("budget", "set", "b", "a", "--epsilon", "9", "--delta", "1e-6", "--reason", "for a year")
    code, _, err = ledger(*set_b, "--expires", "2020-02-29")
    assert code == 0 and "b: epsilon 9 from now on" in err
    assert granted(url) == 0
    assert json.loads(succeeded(ledger("show", "--dataset", "b", "--json")))["datasets"][0]["expires"] == "2020-02-29"
    assert ledger(*set_b, "--expires", "2200-01-01")[0] == 0
    assert granted(url) == most(PrivacyBudget(9.0, 1e-6)) > most(ALLOWANCE.budget)
    entry = json.loads(journal_of(filled)[12][1])
    assert (entry["reason"], entry["budgets"]["b"][:2]) == ("for a year", [9.0, 1e-6])
    unlimited = ("budget", "set", "a", "--epsilon", "inf", "--reason", "measured only")
    before = ledger("show", "--json")[1]
    assert ledger(*unlimited)[0] == 1, "nobody answers that it is meant"
    assert ledger("show", "--json")[1] == before
    assert ledger(*unlimited, "--yes")[0] == 0
    assert json.loads(succeeded(ledger("show", "--json")))["datasets"][0]["budget"] is None
    verify_ledger(filled)


def test_who_changed_a_budget_when_and_why_is_shown_and_certified(ledger, filled, url, monkeypatch, tmp_path):
    given = Ledger(url).allowances(["b"])["b"].budget
    earlier = len(json.loads(succeeded(ledger("show", "--dataset", "b", "--json")))["budgets"])
    monkeypatch.setattr("getpass.getuser", lambda: "operator")
    succeeded(ledger("budget", "set", "b", "--epsilon", "5", "--reason", 'board, "kind":"budget"', "--by", "Dr Weiss"))
    succeeded(ledger("budget", "set", "b", "a", "--epsilon", "4", "--expires", "2200-01-01", "--reason", "less"))
    first, *_, raised, lowered = json.loads(succeeded(ledger("show", "--dataset", "b", "--json")))["budgets"]
    assert (first["delta"], first["reason"], first["by"]) == (given.delta, None, "")
    assert (raised["epsilon"], raised["expires"], raised["by"]) == (5.0, None, "Dr Weiss")
    assert (lowered["epsilon"], lowered["expires"][:10], lowered["by"]) == (4.0, "2200-01-01", "operator")
    assert [raised["reason"], lowered["reason"]] == ['board, "kind":"budget"', "less"]
    assert raised["at"] < lowered["at"]
    shown = succeeded(ledger("show", "--dataset", "b"))
    assert "Its budgets" in shown and "Dr Weiss" in shown and "the first run's" in shown
    certificate = {each.dataset_id: each for each in certify(filled, [], "ab" * 32)}
    assert list(certificate["b"].budgets)[-2:] == [raised, lowered]
    assert len(certificate["b"].budgets) == earlier + 2
    assert certificate["a"].budgets[-1]["reason"] == "less", "an act on two datasets is in the history of both"
    page = certificate_html(certificate["b"], "b.json")
    assert (
        "How the budget changed" in page and "<td>Dr Weiss</td><td>board, &#34;kind&#34;:&#34;budget&#34;</td>" in page
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a", "--epsilon", "0"), "epsilon is 0.0; choose a positive number"),
        (("a", "nobody", "--epsilon", "1"), "knows no dataset 'nobody'"),
        (("a", "--epsilon", "1", "--reason", " "), "the reason is empty"),
    ],
)
def test_a_budget_that_cannot_be_set_changes_nothing(ledger, filled, arguments, problem):
    refused(ledger("budget", "set", "--reason", "why", *arguments), 2, problem)
    assert len(journal_of(filled)) == 12


def test_a_ledger_that_is_not_there_is_not_made(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    setting = ["budget", "set", "a", "--epsilon", "1", "--reason", "x"]
    for command in (["show"], ["verify"], ["export"], ["sign", "key.pem"], setting):
        done = run("ledger", *command, "--ledger", tmp_path / "none.db")
        refused(done, 2, "none.db', where there is none; name the one")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "ledger.db").write_text("")
    refused(run("ledger", "show", "--ledger", "none.db"), 2, "such as --ledger runs/one/ledger.db.")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(run("ledger", "show"), 2, default_url(), "where there is none")
    (tmp_path / "ledger.db").write_text("no database " * 100)
    refused(run("ledger", "show", "--ledger", tmp_path / "ledger.db"), 2, "cannot be used: file is not a database")


def test_the_page_s_python_says_what_show_says(ledger, filled, url, capsys):
    (code,) = re.findall(r"### In Python.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code.replace("sqlite:///runs/digits-1/ledger.db", url).replace("digits/client-1", "a"), {})
    shown = json.loads(succeeded(ledger("show", "--dataset", "a", "--json")))["datasets"][0]
    assert capsys.readouterr().out == f"a: epsilon {shown['epsilon']:.2f} of {shown['budget']:g}\n"


COMMANDS = [["show"], ["show", "--dataset", "nobody"], ["verify"], ["verify", "--signer", "ab"], ["export"]]
COMMANDS += [["rebind", "nobody", "KEY"], ["budget", "set", "nobody", "--epsilon", "1", "--reason", "x"]]
COMMANDS += [["sign", "SIGNING"], ["import", "FILE"]]


def test_a_dataset_whose_mechanisms_nobody_can_compose_does_not_hide_the_others(ledger, filled):
    without_one = PoissonSampledGaussian(0.1, 1.0, NeighbouringRelation.ZERO_OUT)
    filled.reserve(Attempt("two", 2), without_one, {"a": 1}, unlimited)
    found = json.loads(succeeded(ledger("show", "--json")))["datasets"]
    assert [d["epsilon"] for d in found] == [None, pld.epsilon({EVENT: 2}, 1e-5)]
    assert "∞" in succeeded(ledger("show", "--dataset", "a"))


def test_a_key_is_rebound_in_the_form_that_flower_knows_to_one_client_alone(ledger, filled, tmp_path):
    new = write_client_key(tmp_path, "hospital-1").public_key
    filled.bind_keys({"hospital-1": "cc"})
    assert ledger("rebind", "hospital-0", new)[0] == 0
    pem = load_ssh_public_key(new.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    filled.bind_keys({"hospital-0": hashlib.sha256(pem).hexdigest()})
    refused(ledger("rebind", "hospital-1", new), 2, "that key is or was hospital-0's")
    another = write_client_key(tmp_path, "hospital-2").public_key
    refused(ledger("rebind", "nobody", another), 2, "knows no client 'nobody'")
    (tmp_path / "key.pub").write_text("no key")
    refused(ledger("rebind", "hospital-0", tmp_path / "key.pub"), 2, "holds no public key in OpenSSH's format")
    refused(ledger("rebind", "hospital-0", tmp_path / "none.pub"), 2, "none.pub")
    verify_ledger(filled)


def test_no_command_prints_a_password(run, tmp_path):
    """`show` meets every problem of a database, and each other command one."""
    with_password = "postgresql+psycopg://postgres:s3cret@127.0.0.1:1/test"
    gone = with_password.replace("127.0.0.1", "127.0.0.1.invalid")
    by_query = "postgresql+psycopg://postgres@127.0.0.1:1/test?password=s3cret"
    urls = [with_password, gone, by_query, with_password.replace("+psycopg", ""), with_password.replace(":1/", ":x/")]
    (tmp_path / "FILE").write_text("no export")
    (tmp_path / "KEY").write_text("no key")
    for command, url in [*zip(COMMANDS, itertools.cycle(urls)), *((["show"], url) for url in urls)]:
        words = [str(tmp_path / word) if word.isupper() else word for word in command]
        assert "s3cret" not in str(run("ledger", *words, "--ledger", url))
