"""An entry for the public registry of differential privacy deployments (registry.opendp.org), by its schema.

The keys are those of `schemas/deployments-schema.yaml` in opendp/deployments-registry-data as of 2026-07-15. Whoever
submits it reviews it first: the registry takes entries as pull requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from fedprivacy.ledger.certificate import Certificate
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.nulls import or_infinite
from fedprivacy.values.unit import RECORD, Unit
from fedprivacy.values.wording import OUT_OF_SCOPE, TRUSTED, delta_text, epsilon_text, plural

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
"""Values that the registry takes for a sector."""

TO_BE_GIVEN = "TO BE GIVEN by the organisation"
"""Text of what only the organisation can say, and has not said."""

_MECHANISMS = (
    "Local DP-SGD: in each step a client draws a Poisson sample, clips each record's gradient, and adds Gaussian "
    "noise to the sum before anything leaves it. Questions are answered by the same mechanism. Against attacks on "
    "floating point, sums and noise lie on a public lattice, and random bits come from an AES-256 keystream under a "
    "fresh secret key. Timing on a client's host is out of scope."
)


def registry_entry(
    about: Mapping[str, str], certificates: Sequence[Certificate], models: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe a deployment by the registry's schema.

    Args:
        about: the organisation's words, see `fedprivacy.commands.dossier.ABOUT`.
        certificates: those of all datasets, the one that has spent most first.
        models: facts of the models.
    """
    most = certificates[0]
    unit, said = Unit.of(most.unit or str(RECORD)), {key: about.get(key, TO_BE_GIVEN) for key in _WORDS}
    zero_out = most.relation == NeighbouringRelation.ZERO_OUT
    hidden = any(model["user_level"] for model in models)
    limits = [or_infinite(certificate.budget) for certificate in certificates]
    promised = max(limits)
    parameters: dict[str, Any] = {"delta": max(certificate.delta for certificate in certificates)}
    if promised < float("inf"):
        parameters = {"epsilon": promised} | parameters
    spent = f" Spent so far: at most {epsilon_text(or_infinite(most.epsilon))}." if not hidden else ""
    year = (about.get("publication_date") or most.issued)[:4]
    asked = any(certificate.questions for certificate in certificates)
    basic = {
        "name": said["name"],
        "data_curators": [said["organisation"]],
        "description": said["description"],
        "intended_use": said["intended_use"],
        "data_product_type": "Machine learning model",
        "data_product_region": said["region"],
        "publication_date": about.get("publication_date", most.issued[:10]),
    }
    if "sector" in about:
        basic["data_product_sector"] = about["sector"]
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"{said['name']} {about.get('organisation', '')} {year}".lower()).strip(
            "-"
        ),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Every set of {plural(unit.name)} that a client could hold, as the task reads it.",
                "unprotected_quantities": "Names of clients, settings, and metrics on public records"
                + (f"; the number of {plural(unit.name)} of each client." if zero_out else "."),
            },
            "privacy_loss": {
                "privacy_unit": str(unit),
                "privacy_unit_details": f"Two datasets of a client are adjacent if one {unit.name} is "
                + ("replaced by one that contributes nothing (zero-out)." if zero_out else "added or removed."),
                "privacy_parameters": parameters,
                "privacy_parameters_details": "For the server's view, for each client, over all runs; epsilon is the "
                f"largest budget, and delta is {delta_text(most.delta)}.{spent}",
            },
            "deployment_model": {
                "model_name": "Federated",
                "model_name_details": "Each client adds the noise to its own updates: it trusts no server.",
                "actors": f"Clients hold the records. {TRUSTED} The server sees every update, and may be curious. "
                f"Whoever sees the models sees less. {OUT_OF_SCOPE}",
                "release_type": "Many releases",
                "release_type_details": "Each round releases an update of each client. A dataset's budget holds over "
                "all runs; only an act that the ledger records changes it. It is charged before records are read.",
                "data_source_type": "Static",
                "access_type": "Interactive" if asked else "Non-interactive",
                "access_type_details": "Questions of the server's operator were charged to the same budget."
                if asked
                else "Nobody asked questions about the records.",
            },
            "accounting": {
                "post_processing": "Averaging on the server, and everything that is computed from the models.",
                "composition": "Sequential, over all steps, rounds, runs and questions, by privacy loss distributions; "
                "a privacy filter keeps the budget under adaptive choices.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "Each run on the records was charged. Standardisation is "
                "public, or a charged question. Settings chosen on other records: see the justification.",
                "mechanisms": _MECHANISMS,
                "justification": said["justification"],
            },
            "administrative": {
                "sources": most.software,
                "notes": f"SHA-256 of the program's files: {most.digest}.",
                "registry_authors": [said["organisation"]],
            },
        },
    }


_WORDS = ("name", "organisation", "description", "intended_use", "region", "justification")


def as_yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Write nested mappings of texts, numbers and lists of texts as YAML."""
    lines = []
    for key, each in value.items():
        if isinstance(each, Mapping):
            lines.append(f"{indent}{key}:\n{as_yaml(each, f'{indent}  ')}")
        elif isinstance(each, list):
            lines.append(f"{indent}{key}:\n" + "".join(f"{indent}  - {_scalar(item)}\n" for item in each))
        else:
            lines.append(f"{indent}{key}: {_scalar(each)}\n")
    return "".join(lines)


def _scalar(value: object) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"  # YAML 1.1 takes 1e-05 for a text
    return json.dumps(value, ensure_ascii=False)  # what JSON writes of a text is YAML, too
