"""The officer's file: one folder that says what was done with people's records, what it cost them, and how to check it.

`dossier.json` is the source, the page is drawn from it, and any browser prints the page. A folder holds facts that the
server knows, as certificates do, and words that the organisation gives; no record and no private size.

    dossier.json, .html           everything, for a machine, and for a screen and paper
    certificates/                 a signed sheet for each dataset
    models/RUN/                   model.safetensors, and its card as README.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy._support.software import software
from fedprivacy.accounting.risk import RATES
from fedprivacy.commands import risk_page
from fedprivacy.commands.certificate_page import certificate_body, write_certificate
from fedprivacy.ledger.certificate import Certificate
from fedprivacy.ledger.journal import now
from fedprivacy.ledger.store import Ledger
from fedprivacy.runs.records.folder import MODEL, RunFolderError, read_history, read_run_id
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.html_page import for_every_screen, page
from fedprivacy.runs.records.report import risk_figure
from fedprivacy.values import wording
from fedprivacy.values.metrics import measured_on
from fedprivacy.values.numbers import finite_or_none, or_infinite, plain, read_unbounded
from fedprivacy.values.runs import Verdict
from fedprivacy.values.spent import UserLevelSpent
from fedprivacy.values.unit import RECORD, Unit
from fedprivacy.values.wording import plural

ABOUT = {
    "name": "of the product: a model, or several",
    "organisation": "who answers for it",
    "contact": "whom people may ask",
    "intended_use": "what the model is for, and what it is not for",
    "description": "what it computes, from which records",
    "legal_basis": "of the processing, and the date of the impact assessment",
    "region": "whose law applies",
    "justification": "why this budget, this unit of privacy and these settings were chosen",
}
"""Words that only the organisation can give, by their keys in a TOML file."""

_SETTINGS = (
    "rounds",
    "local-steps",
    "clipping",
    "clipping-norm",
    "optimizer",
    "learning-rate",
    "initial-model",
    "fraction-train",
)
_VERSION = 1
_MOST_SHEETS, _MOST_ROWS = 12, 40
"""Certificates and rows in the page, those that spent most; the folder holds all."""

_FIGURE_WIDTH = 320


class DossierError(ValueError):
    """A dossier cannot be made of what was given; the error names the setting, its value and the remedy."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A private run that has ended with a model: its folder, its name in the ledger, and its history."""

    folder: Path
    run_id: str
    history: RunHistory

    @property
    def name(self) -> str:
        """The folder's name, in which a dossier keeps the model."""
        return self.folder.absolute().name


def finished_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read the runs that a dossier is of.

    Raises:
        DossierError: there is none, a folder holds none that is finished and private, or two have the same name.
    """
    if not folders:
        raise DossierError("run is left open; name the folder of a finished run (--run runs/digits-1), or several.")
    found = [_read_finished(folder) for folder in folders]
    names = [run.name for run in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DossierError(f"run is '{twice[0]}' twice; give each run's folder once, and folders names of their own.")
    return found


def _read_finished(folder: Path) -> FinishedRun:
    try:
        history, run_id = read_history(folder), read_run_id(folder)
    except RunFolderError as problem:
        raise DossierError(f"run is {problem}") from problem
    if not history.facts.private:
        raise DossierError(f"run is '{folder}', which has no privacy: nothing answers for its model; name another run.")
    if not (folder / MODEL).is_file():
        raise DossierError(f"run is '{folder}', which has no {MODEL} yet; it is written when the run ends.")
    return FinishedRun(folder, run_id, history)


def charged_datasets(ledger: Ledger, runs: Sequence[FinishedRun]) -> list[str]:
    """List the datasets that runs charged. Raises DossierError: the ledger holds no charge of a run."""
    every = ledger.dataset_ids()
    found: set[str] = set()
    for run in runs:
        charged = ledger.accounts_in_run(run.run_id, every) if run.run_id else {}
        if not charged:
            own = run.folder / "ledger.db"
            where = f": --ledger {own}" if own.exists() else " (--ledger)"
            raise DossierError(
                f"run is '{run.folder}', of which ledger {ledger.name} holds no charge; name the run's ledger{where}."
            )
        found |= charged.keys()
    return sorted(found)


def read_about(file: Path | None) -> dict[str, str]:
    """Read the organisation's own words from a TOML file; None: it gives none.

    Raises:
        DossierError: the file cannot be read, or holds something else.
    """
    if file is None:
        return {}
    try:
        given = tomllib.loads(_text_of("about", file))
    except tomllib.TOMLDecodeError as problem:
        raise DossierError(f"about is '{file}', which is no TOML: {problem}.") from problem
    if unknown := sorted(given.keys() - ABOUT.keys()):
        raise DossierError(f"about is '{file}', with '{unknown[0]}'; it takes {', '.join(ABOUT)}.")
    if wrong := sorted(key for key, value in given.items() if not (isinstance(value, str) and value.strip())):
        raise DossierError(f"about is '{file}', where {wrong[0]} is {given[wrong[0]]!r}; give a text, or leave it out.")
    return given


def read_threat_model(file: Path | None) -> str:
    """Read the organisation's threat model, plain text; None: there is none.

    Raises:
        DossierError: the file cannot be read, or is empty.
    """
    text = "" if file is None else _text_of("threat-model", file).strip()
    if file is not None and not text:
        raise DossierError(f"threat-model is '{file}', which is empty; say who could harm whom, or leave it out.")
    return text


def _text_of(setting: str, file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is no text in UTF-8"
        raise DossierError(f"{setting} is '{file}', which cannot be read ({reason}); name another file.") from problem


def check_new(out: Path) -> None:
    """Refuse a folder that is there, or that cannot be made. Raises DossierError: says which."""
    if out.exists() or out.is_symlink():
        raise DossierError(f"out is '{out}', which is there already; name a new folder.")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise DossierError(f"out is '{out}', and nothing can be made in '{above}'; name another folder.")


def dossier(
    runs: Sequence[FinishedRun], certificates: Sequence[Certificate], about: Mapping[str, str], threat_model: str
) -> dict[str, Any]:
    """Everything that a dossier says, as JSON types.

    Args:
        runs: finished runs, the newest last.
        certificates: those of all datasets that the runs charged, at least one.
        about: the organisation's words, by the keys of `ABOUT`.
        threat_model: the organisation's, as text; empty: it gave none.
    """
    first = sorted(certificates, key=lambda certificate: -or_infinite(certificate.epsilon))
    risk = risk_page.risk_of_certificate(first[0])
    models = [_model(run) for run in runs]
    named = {"name": " and ".join(dict.fromkeys(f"{model['task']} model" for model in models))} | dict(about)
    audits = {json.dumps(audit, sort_keys=True): dict(audit) for each in certificates for audit in each.audits}
    return {
        "version": _VERSION,
        "issued": now().isoformat(timespec="seconds"),
        "software": software().name,
        "digest": software().digest,
        "about": named,
        "open": [key for key in ABOUT if key not in about],
        "certificates": [asdict(certificate) for certificate in first],
        "risk": risk_page.as_fields(risk) | {"sentences": risk_page.sentences(risk)},
        "audits": sorted(audits.values(), key=lambda audit: (audit["at"], audit["attack"])),
        "threat_model": threat_model,
        "models": models,
    }


def _model(run: FinishedRun) -> dict[str, Any]:
    """The facts of a model's card.

    What each client has spent would tell who took part, which user-level noise hides: then the budget alone is stated.
    """
    history, facts, last = run.history, run.history.facts, run.history.last
    whole = last.user_level
    limits = [client.budget_epsilon for client in last.spent.values()]
    return {
        "run": run.name,
        "run_id": run.run_id,
        "file": MODEL,
        "sha256": hashlib.sha256((run.folder / MODEL).read_bytes()).hexdigest(),
        "task": facts.task,
        "strategy": facts.strategy,
        "clients": len(last.spent),
        "rounds": last.round,
        "settings": {key: facts.settings[key] for key in _SETTINGS if facts.settings.get(key) not in (None, "")},
        "metrics": [
            {"name": name, "value": value, "of": measured_on(name)}
            for name, value in plain(history.newest_metrics).items()
        ],
        "main_metric": history.metric,
        "unit": history.unit,
        "relation": history.relation.value,
        "epsilon": None if whole else finite_or_none(last.max_epsilon),
        "budget": finite_or_none(max(limits)),
        "delta": facts.delta,
        "noise_multiplier": facts.noise_text,
        "user_level": plain(whole) if whole else None,
        "seeded": facts.settings.get("seed") is not None,
    }


def dossier_html(fields: Mapping[str, Any]) -> str:
    """The page, drawn from what `dossier` returned; every name in it is escaped."""
    certificates = [_certificate(each) for each in fields["certificates"]]
    risk, unit = risk_page.risk_of_certificate(certificates[0]), Unit.of(certificates[0].unit or str(RECORD))
    whole = next((model["user_level"] for model in fields["models"] if model["user_level"]), None)
    return page(
        "dossier.html.jinja",
        "ledger",
        dossier=fields,
        certificates=certificates,
        rows=certificates[:_MOST_ROWS],
        sheets=[certificate_body(each) for each in certificates[:_MOST_SHEETS]],
        cards=[_card(model, fields["about"]) for model in fields["models"]],
        # Its labels stand in the plot, however narrow it is.
        drawing=for_every_screen(lambda width, below: risk_figure(risk.risk, unit.name, width), _FIGURE_WIDTH),
        found=risk.risk.found(RATES[1]),
        unit=unit,
        many=plural(unit.name),
        asked=any(each.questions for each in certificates),
        user_level=UserLevelSpent(**read_unbounded(whole)) if whole else None,
        violated=[audit for audit in fields["audits"] if audit["verdict"] == Verdict.VIOLATED],
        meanings=ABOUT,
        infinite_without=or_infinite,
    )


def _certificate(fields: Mapping[str, Any]) -> Certificate:
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()}
    return Certificate(**given)


def _card(model: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
    """A model's card: its title, facts by section, and limits, for people."""
    whole, unit = model["user_level"], Unit.of(model["unit"])
    promised = "none; the loss was only measured" if model["budget"] is None else wording.budget_text(model["budget"])
    lost = wording.epsilon_text(or_infinite(model["epsilon"]), or_infinite(model["budget"]))
    privacy = {
        "unit of privacy": model["unit"],
        "neighbouring relation": model["relation"],
        "budget of a client, epsilon": f"{promised}, at delta {wording.delta_text(model['delta'])}, over all its runs",
        "largest loss of a client": f"epsilon {lost}, when the run had ended, for the server's view",
        "noise multiplier of a step": model["noise_multiplier"],
    }
    if whole:
        privacy.pop("largest loss of a client")  # it would tell who took part, which the noise on the models hides
        privacy["each client as a whole"] = UserLevelSpent(**read_unbounded(whole)).text
    training = {"task": model["task"], "strategy": model["strategy"], "clients": str(model["clients"])}
    training |= {wording.metric_name(key): str(value) for key, value in model["settings"].items()}
    measured = {
        wording.metric_name(each["name"]): f"{wording.metric_text(each['name'], each['value'])} ({each['of']})"
        for each in model["metrics"]
    }
    limits = [
        f"Protected is one {unit.name} against whoever sees the models or the updates; what is true of "
        f"{plural(unit.name)} in general is learnt: that is the purpose.",
        f"{wording.TRUSTED} {wording.TAMPERED_CODE}",
        "Metrics are of public records or bear noise; how the model does for your patients, measure before you use it.",
        "Differential privacy can cost small groups more accuracy than large ones; measure each group by itself.",
    ]
    if unit.rows == 1:
        limits.append("A person with several records is protected less; the certificates say how much.")
    if model["seeded"]:
        limits.append("The run was seeded: whoever knows the seed can take the noise away. It protects nobody.")
    return {
        "title": f"{about['name']} ({model['run']})",
        "run": model["run"],
        "sections": {
            "Privacy": privacy,
            "Training": training,
            "What was measured": measured,
            "File": {"SHA-256 of model.safetensors": model["sha256"], "run in the ledger": model["run_id"]},
        },
        "limits": limits,
    }


def write_dossier(fields: Mapping[str, Any], runs: Sequence[FinishedRun], key: Ed25519PrivateKey, out: Path) -> Path:
    """Write a dossier into a new folder, whole or not at all.

    Args:
        fields: what `dossier` returned.
        runs: its runs, whose models are copied.
        key: key that signs the certificates, which name its public half.
        out: the folder.

    Returns:
        The page.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    made = out.with_name(f".{out.name}.new-{os.getpid()}")
    made.mkdir()
    try:
        (made / "certificates").mkdir()
        for certificate in map(_certificate, fields["certificates"]):
            write_certificate(certificate, key, made / "certificates")
        for run, model in zip(runs, fields["models"], strict=True):
            folder = made / "models" / run.name
            folder.mkdir(parents=True)
            shutil.copyfile(run.folder / MODEL, folder / MODEL)
            card = page(
                "model_card.md.jinja", "ledger", about=fields["about"], model=model, **_card(model, fields["about"])
            )
            (folder / "README.md").write_text(card, "utf-8")
        (made / "dossier.json").write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", "utf-8")
        (made / "dossier.html").write_text(dossier_html(fields), "utf-8")
        made.rename(out)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(made, ignore_errors=True)
        raise
    return out / "dossier.html"
