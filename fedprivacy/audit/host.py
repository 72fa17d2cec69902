"""A data owner's host: its configuration, the grants that it would take at the worst, and its client under audit.

The configuration is read as the ClientApp reads it. The guard is not opened, and nothing is written anywhere but in a
temporary folder.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Context, Message, RecordDict, UserConfig
from numpy.typing import NDArray

from fedprivacy._support import signing
from fedprivacy._support.sources import hushed, kind_and_place
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.real_client import RealClient
from fedprivacy.flower import private_client
from fedprivacy.flower.client.local import own_shard, works_on
from fedprivacy.flower.client.node import NODE_CONFIG, NodeSettings, Refused
from fedprivacy.flower.wire.messages import ENROL, EnrolmentRequest, Grant, RefusalCode
from fedprivacy.gradients import LossShapeError, UnsupportedModelError
from fedprivacy.guard import Guard
from fedprivacy.guard.seals import folders_named_after
from fedprivacy.guard.tally import ChargeEntry
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.client_terms import client_terms_of
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, Value
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.tasks import Shard, TaskError, load_task
from fedprivacy.tasks.identity import key_hash
from fedprivacy.tasks.opened import OpenedTask

TRAINING = (
    *("rounds", "local-steps", "sampling-rate", "batch-size", "noise-multiplier", "epsilon", "delta", "spend"),
    *("local-evaluation", "clipping", "clipping-norm", "optimizer", "learning-rate", "momentum", "weight-decay"),
)
"""The settings of a run that reach a client."""

_LEAST_CONFIGURED, _MOST_CONFIGURED = FIELDS["noise-multiplier"].metadata["bounds"]

_RUN = 1
"""Flower's number of the auditor's run."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node configuration, its task and its shard.

    Attributes:
        file: where it was read.
        given: every key and value, as Flower would hand them to the client.
        settings: the same, checked.
        word: what a run calls the task.
        task: the one that the client works on.
        brought: whether the app brings the task, since the configuration names none.
        shard: its own records, on its own device. What is computed of them stays in this process.
    """

    file: Path
    given: UserConfig
    settings: NodeSettings
    word: str
    task: OpenedTask
    brought: bool
    shard: Shard

    @classmethod
    def read(cls, config: Path, task: str | None = None) -> Node:
        """Read a file, or the one in a folder that `fedprivacy deploy init` made.

        Args:
            config: the file, or the folder that holds `NODE_CONFIG`.
            task: which one, as a run names it; None: the only one that the configuration allows.

        Raises:
            ConfigError: the client would not work as it is configured; says what to change, and nothing of any record.
        """
        file = config / NODE_CONFIG if config.is_dir() else config
        found = _toml(file, "node", f"name this host's {NODE_CONFIG}, or the folder that 'fedprivacy deploy init' made")
        given = {key: value for key, value in found.items() if value is not None}
        try:
            with hushed():
                settings = NodeSettings.of(given)
                word, opened = _task(file, settings, task)
                shard = works_on(opened, own_shard(opened, settings.folder, choose_device(settings.device)))
        except Refused as refused:
            raise ConfigError(_why(file, given, refused)) from refused
        except (TaskError, LossShapeError, UnsupportedModelError) as error:
            raise ConfigError(f"{file}: {error}") from error
        except ConfigError as error:
            raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from error
        except Exception as error:  # whose text may hold values
            raise ConfigError(_unreadable(file, given, error)) from None
        return cls(file, given, settings, word, opened, not settings.tasks, shard)

    def worst(self) -> TrainingPlan:
        """The costliest step that the configuration allows: everybody joins, with the least noise that it takes.

        Raises:
            ConfigError: no noise meets its budget.
        """
        one: dict[str, Value] = {"rounds": 1, "local-steps": 1, "sampling-rate": 1.0}
        least = min(max(self.settings.least_noise_multiplier, _LEAST_CONFIGURED), _MOST_CONFIGURED)
        if self.settings.budget.enforced:
            least = max(least, self._plan(one).noise.of())
        return self._plan(one | {"noise-multiplier": least})

    def make_plan(self, run: Mapping[str, Value]) -> TrainingPlan:
        """A run with these settings, as far as this client's own budget allows it.

        Args:
            run: settings of the run by hyphenated key; those that no client sees count for nothing, but for this
                client's line of client-terms.

        Raises:
            ConfigError: they are wrong, or this client would take no round of it.
        """
        own = client_terms_of(str(run.get("client-terms") or "")).of(self.settings.client_id).settings
        without = {"batch-size"} if "sampling-rate" in own else set()
        training = {key: value for key, value in run.items() if key in TRAINING and key not in without} | own
        asked = TrainingPlan.of(training, self.task)
        noise = asked.event(len(self.shard)).noise_multiplier
        settings, schedule = self.settings, asked.config.schedule
        steps = schedule.steps_in(schedule.local_evaluation)  # of the costliest round
        if noise < settings.least_noise_multiplier:
            raise ConfigError(
                f"The run's noise multiplier is {noise:.4g}, and this client takes no grant below "
                f"{settings.least_noise_multiplier:g} (least-noise-multiplier): plan the run with more noise."
            )
        if steps > settings.most_steps:
            raise ConfigError(
                f"A round takes {steps} steps, and this client takes {settings.most_steps} at most (most-steps)."
            )
        kept = {key: value for key, value in training.items() if key not in {"spend", "epsilon", "delta"}}
        plan = self._plan(kept | {"noise-multiplier": noise})
        if plan.limit({}).quota({}, plan.event(len(self.shard))) < steps:
            raise ConfigError(
                f"This client's budget, epsilon {settings.budget.epsilon:g} at delta {settings.budget.delta:g}, "
                "allows no round of the run: plan the run with more noise, or fewer records a step."
            )
        return plan

    def _plan(self, run: Mapping[str, Value]) -> TrainingPlan:
        """A run within this client's budget, on its device."""
        budget = self.settings.budget
        own: dict[str, Value] = {"epsilon": budget.epsilon, "delta": budget.delta}
        how: dict[str, Value] = {"device": self.settings.device, "autocast": self.settings.autocast}
        spent_by = self.settings.filter or self.settings.usual_filter
        return TrainingPlan.of({**run, **own, **how, "filter": spent_by}, self.task)


def run_settings(file: Path) -> dict[str, Value]:
    """Read a run's file of settings, such as the operator's `run.toml`. Raises ConfigError: it cannot be read."""
    return _toml(file, "run-config", "name the file of the run's settings")


def _toml(file: Path, option: str, remedy: str) -> dict[str, Value]:
    try:
        found: dict[str, Value] = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{option} is '{file}', which cannot be read ({error}); {remedy}.") from error
    return found


def _task(file: Path, settings: NodeSettings, word: str | None) -> tuple[str, OpenedTask]:
    """Return the name that a run has for the task, and the task."""
    if not settings.tasks:
        if word is None:
            raise ConfigError("it names no task, since the app brings it; name the app's own, with --task FILE:NAME.")
        return word, settings.task(word, load_task(word))
    if word is None and len(settings.tasks) > 1:
        raise ConfigError(f"it allows several tasks; name one of them, with --task: {', '.join(settings.tasks)}.")
    word = word or next(iter(settings.tasks))
    return word, settings.task(word, None)


def _why(file: Path, given: UserConfig, refused: Refused) -> str:
    """Return what a client would say in its log, with the remedy."""
    key = given.get("key")
    if refused.code is RefusalCode.CLIENT_FAILED:
        return _unreadable(file, given, refused.__cause__ or refused)
    if key is not None and not Path(str(key)).exists():
        return f"{file}: key is '{key}', which is not there; 'fedprivacy deploy client-key NAME' makes it."
    return f"{file}: {refused}"


def _unreadable(file: Path, given: UserConfig, error: BaseException) -> str:
    return (
        f"{file}: folder is '{given.get('folder')}', and the task does not work on the records there "
        f"({kind_and_place(error)}); call the task's shard() yourself, on this host: what an error says may "
        "hold values and is not shown."
    )


class NotTheAuditorsError(RuntimeError):
    """A copy of a configuration in which the auditor's keys do not count: nothing was asked."""


def costliest(audited: Audited, node: Node) -> Grant:
    """One step that everybody joins, with the least noise that the configuration takes; sums can be read from it."""
    worst = node.worst()
    clipping = audited.grant.clipping if audited.grant.adaptive is None else "flat"
    return audited.asking(sampling_rate=1.0, noise_multiplier=worst.noise.of(), clipping=clipping)


@dataclass(frozen=True)
class Host:
    """A data owner's host as it is deployed, asked by the auditor in place of its server.

    The node configuration is the owner's but for three keys: another `server-key`, whose private half the auditor has;
    another `key`, so that no receipt is signed in the owner's name; and another `guard`, in a folder that is gone
    afterwards. So the client charges, seals and refuses as it will, and its own book is neither written nor read.

    Attributes:
        node: how it is configured.
        place: a folder for keys and books, which nobody else can read.
        server, key: the private keys of the auditor's server and client.
    """

    node: Node
    place: Path
    server: Ed25519PrivateKey
    key: ec.EllipticCurvePrivateKey
    _books: Iterator[int] = field(default_factory=count)

    @classmethod
    @contextmanager
    def of(cls, node: Node) -> Iterator[Host]:
        """The host, while the block lasts; what was written for it is gone afterwards, however the block ends."""
        with tempfile.TemporaryDirectory(prefix="fedprivacy-audit-") as folder:
            place = Path(folder)
            key = ec.generate_private_key(ec.SECP384R1())
            (place / "client.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
            yield cls(node, place, Ed25519PrivateKey.generate(), key)

    def client(self, **run_config: str | int) -> DeployedClient:
        """The client, with an empty book; in a run with further settings.

        Raises:
            NotTheAuditorsError: the configuration is not obeyed: the owner's own book could be written.
        """
        guard = self.place / f"{next(self._books)}.log"
        own = {
            "server-key": signing.server_public_key(self.server),
            "key": str(self.place / "client.key"),
            "guard": str(guard),
        }
        given = {**self.node.given, **own}
        settings = NodeSettings.of(given)
        if settings.guard != guard or settings.server_key != own["server-key"]:
            raise NotTheAuditorsError("The node configuration is not obeyed: another guard or server key counts.")
        word = {} if self.node.brought else {"task": self.node.word}
        context = Context(_RUN, 7, given, RecordDict(), {**word, **run_config})
        return DeployedClient(self, settings, context)


class DeployedClient(RealClient):
    """The ClientApp on a host; what it is granted is signed by the auditor's server."""

    def __init__(self, host: Host, settings: NodeSettings, context: Context) -> None:
        super().__init__(private_client(host.node.task if host.node.brought else None), context)
        self.host, self.settings = host, settings

    def sign(self, grant: Grant) -> Grant:
        """A grant in the name of the server that this client obeys."""
        return replace(grant, server_key=self.settings.server_key, signature="").sign(self.host.server)

    def ask(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant, once it is signed."""
        return self.asked_as_is(self.sign(grant), parameters)

    def asked_as_is(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant, with any signature."""
        return super().ask(grant, parameters)

    def request(self, **changed: str) -> EnrolmentRequest:
        """A request to enrol that this client must answer, unless `changed` spoils a field before it is signed."""
        own = key_hash(signing.client_public_key(self.host.key))
        usual = {"run_id": str(_RUN), "client_key": own}
        return EnrolmentRequest(**usual | changed).sign(self.host.server)

    def enrol(self, request: EnrolmentRequest | None) -> Message:
        """The reply to a request to enrol; None: one without it."""
        record = ConfigRecord() if request is None else request.to_record()
        return self.send(ENROL, RecordDict({EnrolmentRequest.name: record}))

    def charges(self) -> list[ChargeEntry]:
        """Return the entries of the client's book, read from the disk."""
        settings = self.settings
        return Guard(settings.guard, settings.budget).charges() if settings.guard.exists() else []

    def lose_sealed(self) -> None:
        """Delete what was sealed, as a fault of the disk could."""
        for folder in folders_named_after(self.settings.guard):
            for file in folder.iterdir():
                file.unlink()
