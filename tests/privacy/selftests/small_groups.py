"""What a deployed client decides by itself when it answers: whom it tells of, its noise, and what it charges.

The client is a real one, with a folder, a key, a guard and a node configuration that lets its server ask; its records
are made up. A group that is too small is not told, and that is decided by its noisy number of records alone: were it
the true number, whoever asks would learn it without noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from numpy.typing import NDArray
from scipy import stats

from fedprivacy._support.signing import server_public_key
from fedprivacy.audit.deployed import write_key
from fedprivacy.audit.gates.alarms import Alarms, of_correlations, of_counts
from fedprivacy.audit.our_client.compared_replies import fields_of
from fedprivacy.audit.real_client import NoUpdateError, RealClient
from fedprivacy.flower import private_client
from fedprivacy.flower.client.node import GUARD
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.wire.messages import ASK, QUESTION_GRANT, RECEIPT, QuestionGrant
from fedprivacy.guard import Guard
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.lattice import STEPS
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.values.attempt import QUESTIONS
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation

_TASK = """\
import torch, fedprivacy
class Patients(fedprivacy.Task):
    dataset, shard_sizes_public, nominal_shard_size = "patients", False, 10
    def model(self):
        return torch.nn.Linear(2, 2)
    def shard(self, source):
        return fedprivacy.Shard(torch.zeros(46, 2), torch.zeros(46, dtype=torch.long))
    def table(self, source):
        return fedprivacy.Table({"ward": ["few"] * 7 + ["less"] * 9 + ["more"] * 11 + ["many"] * 19})
"""
"""A task whose table has groups on both sides of the smallest cohort."""

_GROUPS = {"nobody": 0, "few": 7, "less": 9, "more": 11, "many": 19}
_COHORT, _NOISE, _ASKED = 10.0, 15.0, 120
"""The smallest cohort, the deviation of each noisy number, and how often each is asked."""


@dataclass(frozen=True)
class _Deployed:
    """A deployed client, and the key of the server that it heeds."""

    client: RealClient
    server: Ed25519PrivateKey
    folder: Path

    @classmethod
    @contextmanager
    def new(cls, smallest_cohort: float) -> Iterator[_Deployed]:
        """One that answers; gone afterwards."""
        with tempfile.TemporaryDirectory() as name:
            folder, server = Path(name), Ed25519PrivateKey.generate()
            (folder / "patients.py").write_text(_TASK)
            write_key(folder / "client.key")
            node: UserConfig = {
                "folder": name,
                "epsilon": 1e6,
                "delta": 1e-5,
                "key": str(folder / "client.key"),
                "server-key": server_public_key(server),
                "task": f"{folder / 'patients.py'}:Patients",
                "questions": "count",
                "question-columns": "ward",
                "smallest-cohort": smallest_cohort,
            }
            context = Context(1, 7, node, RecordDict(), {"task": "patients.py:Patients"})
            yield cls(RealClient(private_client(), context), server, folder)

    def asked(self, round: int) -> tuple[list[tuple[str, object]], NDArray[np.bool_], NDArray[np.float64]]:
        """All that came back, and whether each group was told and its noisy number of records, [asked, groups].

        Raises:
            NoUpdateError: the client does not answer.
        """
        reply = self.client.send(ASK, RecordDict({QUESTION_GRANT: self.grant(round).to_record()}))
        if reply.has_error() or RECEIPT not in reply.content:
            raise NoUpdateError("A deployed client does not answer what its owner lets the server ask.")
        rows = np.array([array.numpy() for array in reply.content.array_records[ARRAYS].values()])
        return fields_of(reply), rows[:, :, 0] != 0, rows[:, :, 1] / STEPS

    def grant(self, round: int) -> QuestionGrant:
        """For as many counts, of which each group's has the same noise."""
        count = Questions.count(by={"ward": list(_GROUPS)})
        unsigned = QuestionGrant(
            run_id=f"{QUESTIONS}audit",
            client_id=self.folder.name,
            round=round,
            attempt=1,
            steps=1,
            sampling_rate=1.0,
            noise_multiplier=_NOISE / _ASKED**0.5,
            relation=NeighbouringRelation.ADD_OR_REMOVE_ONE,
            unit="record",
            clipping_norm=1.0,
            questions=Questionnaire((count,) * _ASKED).as_text(),
            earlier_runs=0,
            charged="",
            server_key=server_public_key(self.server),
        )
        return unsigned.signed(self.server)

    def charges(self) -> list[tuple[object, object, int]]:
        """What its book holds."""
        guard = Guard(self.folder / GUARD, PrivacyBudget(1e6, 1e-5))
        return [(charge.attempt, charge.event, charge.steps) for charge in guard.charges()]


def of_deployed(alarms: Alarms) -> None:
    """Check that secret noise decides a deployed client's answers, and that they are charged once."""
    with _Deployed.new(_COHORT) as deployed:
        first, told, noisy = deployed.asked(1)
        grant = deployed.grant(1)
        alarms.must(
            deployed.charges() == [(grant.charged_as, grant.event, 1)],
            "The book of a client that answers does not hold the charge.",
        )
        alarms.must(
            bool((noisy[told] >= _COHORT).all()) and not noisy[~told].any(),
            "A group is told though its noisy number is too small, or is not and its number leaves.",
        )
        for place, (group, people) in enumerate(_GROUPS.items()):
            chance = float(stats.norm.sf((_COHORT - people) / _NOISE))
            alarms.test(
                of_counts(int(told[:, place].sum()), _ASKED, chance),
                f"Whether a group is told does not go by its noisy number: {told[:, place].mean():.0%} of the time "
                f"for {people} records ({group}), where noise makes it {chance:.0%}.",
            )
        alarms.must(
            deployed.asked(1)[0] == first and len(deployed.charges()) == 1,
            "The same grant is answered otherwise, or charged again: its noise could be averaged away.",
        )
    with _Deployed.new(0.0) as deployed, _Deployed.new(0.0) as other:
        asked = [each.asked(round)[2] - list(_GROUPS.values()) for each in (deployed, other) for round in (1, 2)]
        alarms.test(
            of_correlations([noise.ravel() for noise in asked])[0],
            "The noise of a deployed client's answer can be told from that of another: it is no secret.",
        )
