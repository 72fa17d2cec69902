"""Why an update was asked for and not used: constant codes, and what they mean for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code means.

    Attributes:
        words: a sentence's worth.
        refused: whether the client said no before it touched a record; its charge is returned. Any other stands.
    """

    words: str
    refused: bool = False


REASONS = {
    "no-reply": Reason("the client did not answer in time"),
    "budget-exhausted": Reason("the client's own guard refused: its budget is spent", refused=True),
    "grant-invalid": Reason("the client refused a grant that it could not accept", refused=True),
    "seed-in-deployment": Reason("the client refused to train with a known seed", refused=True),
    "no-guard": Reason("the client has no guard and refused to train", refused=True),
    "guard-unusable": Reason("the client could not write down the charge and refused to train", refused=True),
    "no-key": Reason("the client has no key to sign with and refused to train", refused=True),
    "node-config-invalid": Reason("the client's own node configuration is incomplete or wrong", refused=True),
    "task-not-allowed": Reason("the client's own node configuration does not allow this task", refused=True),
    "enrolment-invalid": Reason("the client's own server did not sign the request to enrol", refused=True),
    "already-charged": Reason("the client had been charged when it died, and lost its update"),
    "client-failed": Reason("training failed on the client's host"),
    "malformed-refusal": Reason("the client's refusal could not be read"),
    "malformed-receipt": Reason("the client's receipt could not be read"),
    "receipt-does-not-match-grant": Reason("the client's receipt says something else than the grant"),
    "forged-receipt": Reason("the client's key did not sign the receipt"),
    "receipt-of-another-update": Reason("the receipt was signed for another update"),
    "too-large": Reason("a parameter of the update is beyond 1e15"),
    "wrong-arrays": Reason("the update holds other parameters than the model"),
    "wrong-shape": Reason("a parameter of the update has another shape than the model's"),
    "undecodable": Reason("a parameter of the update could not be read"),
    "not-finite": Reason("a parameter of the update is infinite or not a number"),
}
"""By code: the part of a reason before its first colon."""


def reason_of(text: str) -> Reason:
    """What a reason means, with or without a detail after its code; codes of a newer version speak for themselves."""
    code = text.partition(":")[0]
    if code.startswith("client-error-"):
        return Reason("Flower could not deliver the message, or the client's app ended with an error")
    return REASONS.get(code, Reason(code.replace("-", " ")))
