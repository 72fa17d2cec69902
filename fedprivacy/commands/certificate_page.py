"""A certificate as a page for people: one sheet of A4, one file, no script, nothing from the network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy._support.durable import write_durably
from fedprivacy.accounting.risk import RATES, sentence_of
from fedprivacy.commands.terminal import plain_errors, print_error
from fedprivacy.ledger.certificate import Certificate, CertificateError
from fedprivacy.questions.questionnaire import describe
from fedprivacy.runs.records.html_page import page
from fedprivacy.values import wording
from fedprivacy.values.numbers import or_infinite
from fedprivacy.values.runs import Verdict
from fedprivacy.values.unit import Unit

_MOST_EVENTS, _MOST_QUESTIONS = 5, 4
"""Rows that fit on the sheet; the JSON holds all."""

_ACCUSED = RATES[1]
"""Share of false accusations on the sheet; the JSON has others."""

_NUMBERS = {
    "ε": "epsilon",
    "δ": "delta",
    "the budget": "budget",
    "sampling rate": "sampling_rate",
    "noise multiplier": "noise_multiplier",
    "steps": "steps",
    "receipts": "receipts",
    "digest": "digest",
}
"""Numbers on the sheet that no other words explain there, with the names of their fields."""

_PROTECTS = {
    "add-or-remove-one": "whether a record is there at all (add-or-remove-one relation)",
    "zero-out": "what a record says; that it is there is public, as the number of records is (zero-out relation)",
    "replace-one": "what a record says (replace-one relation)",
    None: "nothing was charged yet, so nothing is stated",
}


def write_certificate(certificate: Certificate, key: Ed25519PrivateKey, folder: Path) -> Path:
    """Write a certificate, signed, as JSON and as a page.

    Returns:
        Both files' path without its ending.
    """
    told = hashlib.sha256(certificate.dataset_id.encode()).hexdigest()[:8]  # names may differ in what no file's may
    name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', certificate.dataset_id).strip('-.')[:48]}-{told}"
    signed = certificate.signed_with(key)
    write_durably(folder / f"{name}.json", f"{signed}\n".encode())
    write_durably(folder / f"{name}.html", certificate_html(certificate, f"{name}.json").encode())
    return folder / name


def read_certificate(file: Path, signers: Collection[str]) -> Certificate:
    """Read a certificate that bears the signature of its key; an error ends the command, with 1 if it is not genuine.

    Args:
        file: JSON that `write_certificate` wrote.
        signers: public keys, in hexadecimal, of accepted signers; empty: any.
    """
    with plain_errors(OSError, UnicodeDecodeError, code=2):
        text = file.read_text()
    try:
        return Certificate.read(text, signers)
    except CertificateError as problem:
        print_error("error", f"{file}: {problem}")
        raise typer.Exit(1) from None


def certificate_html(certificate: Certificate, json_file: str) -> str:
    """The page; every name in it is escaped.

    Args:
        certificate: what it shows.
        json_file: the name of the signed JSON beside it.
    """
    body = certificate_body(certificate)
    return page("certificate.html.jinja", "ledger", certificate=certificate, body=body, json_file=json_file)


def certificate_body(certificate: Certificate) -> str:
    """The page without its head and foot: also a part of a dossier."""
    events, questions = certificate.history[:_MOST_EVENTS], certificate.questions[-_MOST_QUESTIONS:]
    return page(
        "certificate.body.jinja",
        "ledger",
        certificate=certificate,
        events=events,
        more=len(certificate.history) - len(events),
        trained=certificate.steps - certificate.question_steps - certificate.claimed_steps,
        questions=questions,
        more_questions=len(certificate.questions) - len(questions),
        epsilon=wording.epsilon_text(or_infinite(certificate.epsilon), or_infinite(certificate.budget)),
        left=wording.proved_text(max(certificate.budget - certificate.epsilon, 0.0))
        if certificate.budget is not None and certificate.epsilon is not None
        else None,
        protects=_PROTECTS[certificate.relation],
        fingerprint=hashlib.sha256(bytes.fromhex(certificate.public_key)).hexdigest(),
        infinite_without=or_infinite,
        risks=_risks(certificate),
        audited=_audit_text(certificate),
        meanings={name: certificate.meanings[key] for name, key in _NUMBERS.items() if key in certificate.meanings},
        describe=describe,
    )


def _risks(certificate: Certificate) -> tuple[str, dict[int, str]]:
    """Say what an attacker finds at most, in a sentence; and of persons with several records, by their number.

    All are of the same rate of false accusations; empty: nothing is stated.
    """
    found = {int(stated["rows"]): stated["found"] for stated in certificate.risks if stated["accused"] == _ACCUSED}
    if 1 not in found:
        return "", {}
    sentence = sentence_of(_ACCUSED, found.pop(1), Unit.of(str(certificate.unit)).name)
    return sentence, {rows: wording.at_most_text(share) for rows, share in found.items()}


def _audit_text(certificate: Certificate) -> str:
    """Say when its runs were audited last, and what attacks proved."""
    if not certificate.audits:
        return "no audit of its runs is in the server's records"
    last = max(str(result["at"])[:10] for result in certificate.audits)
    strongest = max(certificate.audits, key=lambda result: float(result["lower"]))
    broken = [result for result in certificate.audits if result["verdict"] == Verdict.VIOLATED]
    shown = max(broken, key=lambda result: float(result["lower"])) if broken else strongest
    verdict = "more than is stated: the code or the statement is wrong" if broken else "consistent with what is stated"
    lower, upper = float(shown["lower"]), or_infinite(shown["upper"])
    return (
        f"{wording.count_text(len(certificate.audits), 'attack')} on its runs, the last on {last}, showed a loss of at "
        f"least ε {wording.proved_text(lower)} by a training with their settings, for which at most "
        f"{wording.epsilon_text(upper)} is stated: {verdict} (by the server's records, which no journal proves)"
    )


def spent_words(certificate: Certificate) -> str:
    """The privacy spent, and the budget."""
    epsilon = wording.epsilon_text(or_infinite(certificate.epsilon), or_infinite(certificate.budget))
    budget = f" of {wording.budget_text(certificate.budget)}" if certificate.budget is not None else ""
    unit = wording.unit_text(certificate.unit) if certificate.unit else ""
    return f"epsilon {epsilon}{budget} at delta {wording.delta_text(certificate.delta)}{unit}"
