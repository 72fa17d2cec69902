"""The data owner's decisions: the node configuration of its SuperNode, and the requests that it refuses a server.

In a deployment all decisions of trust are made here: the task, and with it the public facts; the budget; the trusted
server; the minimum noise; the device. A server's requests are checked against them, and change none of them.

docs/how-to/deploy.md says what each key is for. A key that is not in the table below is refused: a misspelt limit must
not be no limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import UserConfig

from fedprivacy._support import signing
from fedprivacy._support.settings import names_in
from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.flower.wire.messages import EnrolmentRequest, Grant, MessageError, QuestionGrant, RefusalCode
from fedprivacy.questions.questionnaire import KINDS, Questionnaire
from fedprivacy.runs.settings.device import AUTOCASTS, is_device
from fedprivacy.tasks import Task, TaskError, relation_of
from fedprivacy.tasks.identity import key_hash
from fedprivacy.tasks.loader import AllowedTask, allowed_tasks, open_task, public_name
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.wording import unit_text

NODE_CONFIG = "node-config.toml"
"""Name of the node configuration's file in a data owner's folder."""

GUARD = "guard.log"
"""Name of the guard's file, in the client's data folder unless the node configuration names another."""

MOST_STEPS = 100_000
"""Local steps that one grant may ask for, each once for every view of a record: more would keep a host busy for a
server's pleasure."""

_LEAST_NOISE_MULTIPLIER = 0.3
"""Below it a single gradient stands out of its own noise. The budget alone does not forbid that: with a sampling rate
under delta it would allow steps without noise, each of which shows somebody with a probability of at most delta."""


SMALLEST_COHORT = 10.0
"""Fewer records make an average that is about somebody; what the noise hides of them is of no use to anybody."""

EVERYTHING = "*"
"""Stands for all columns."""


class Refused(Exception):
    """The client will not train or answer; carries the code that crosses."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Answerable:
    """The questions that a data owner lets a server ask.

    Attributes:
        kinds: allowed kinds of questions.
        columns: columns that questions may read; `EVERYTHING`: any.
        budget: budget for all answers together; None: the client's whole budget.
        smallest_cohort: minimum noisy number of records of a group whose figures are released.
    """

    kinds: frozenset[str]
    columns: frozenset[str]
    budget: PrivacyBudget | None
    smallest_cohort: float

    def check(self, asked: Questionnaire) -> None:
        """Refuse questions that are not allowed: decided by their text, which is public.

        Raises:
            Refused: says which in this client's log.
        """
        if kinds := sorted(asked.kinds - self.kinds):
            raise _not_answered(f"{', '.join(kinds)}; questions = '{', '.join(sorted(self.kinds))}'")
        if EVERYTHING not in self.columns and (columns := sorted(asked.columns - self.columns)):
            raise _not_answered(f"of {', '.join(columns)}; question-columns = '{', '.join(sorted(self.columns))}'")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A node configuration, checked."""

    folder: Path
    client_id: str
    budget: PrivacyBudget
    filter: str
    guard: Path
    key: EllipticCurvePrivateKey
    server_key: str
    tasks: Mapping[str, AllowedTask]
    disclose_shard_size: bool
    least_noise_multiplier: float
    most_steps: int
    answerable: Answerable
    device: str
    autocast: str

    @classmethod
    def of(cls, node: UserConfig) -> NodeSettings:
        """Check a node configuration. Raises Refused: says what is missing, or everything that is wrong."""
        _require(node, ("folder", "epsilon", "delta"), RefusalCode.NO_GUARD, "the data folder and your own budget")
        _require(node, ("key",), RefusalCode.NO_KEY, "the file that --auth-supernode-private-key names")
        _require(node, ("server-key",), RefusalCode.NODE_CONFIG_INVALID, "the key of the server that you trust")
        if problems := _problems(node):
            raise _invalid(", and ".join(problems))
        try:
            budget = PrivacyBudget(float(node["epsilon"]), float(node["delta"]))
            key = signing.client_key(Path(str(node["key"])))
            own = PrivacyBudget(float(node["question-epsilon"]), budget.delta) if "question-epsilon" in node else None
            if own is not None and own.epsilon > budget.epsilon:
                raise ValueError(f"question-epsilon is {own.epsilon}, and epsilon {budget.epsilon}: it is a part of it")
            kinds, columns = names_in(str(node.get("questions", ""))), names_in(str(node.get("question-columns", "")))
            least = float(node.get("smallest-cohort", SMALLEST_COHORT))
            answerable = Answerable(frozenset(kinds), frozenset(columns), own, least)
            tasks = allowed_tasks(names_in(f"{node.get('task', '')},{node.get('tasks', '')}"))
        except signing.SigningKeyError as error:
            raise Refused(RefusalCode.NO_KEY, str(error)) from error
        except TaskError as error:
            raise _invalid(f"names no task: {error}") from error
        except ValueError as error:
            raise _invalid(f"has no budget: {error}") from error
        folder = Path(str(node["folder"]))
        return cls(
            folder=folder,
            client_id=str(node.get("client-id", folder.name)),
            budget=budget,
            filter=str(node.get("filter", "")),
            guard=Path(str(node.get("guard", folder / GUARD))),
            key=key,
            server_key=str(node["server-key"]).lower(),
            tasks=tasks,
            disclose_shard_size=bool(node.get("disclose-shard-size", True)),
            least_noise_multiplier=float(node.get("least-noise-multiplier", _LEAST_NOISE_MULTIPLIER)),
            most_steps=int(node.get("most-steps", MOST_STEPS)),
            answerable=answerable,
            device=str(node.get("device", "auto")),
            autocast=str(node.get("autocast", AUTOCASTS[0])),
        )

    @property
    def usual_filter(self) -> str:
        """The privacy filter of a new guard: one for training and questions together if questions are allowed."""
        return FILTER_OF_MIXTURES if self.answerable.kinds else DEFAULT_FILTER

    def check_enrolment(self, request: EnrolmentRequest, run_id: int) -> None:
        """Refuse to enrol unless the trusted server asks this client, in this run of Flower's.

        Raises:
            MessageError: the request is not signed by the server that this client trusts, or for another client or run.
        """
        if not self._is_signed(request):
            raise MessageError("The request is not signed by the server that this client trusts (server-key).")
        if request.client_key != key_hash(signing.client_public_key(self.key)) or request.run_id != str(run_id):
            raise MessageError("The request is signed for another client, or for another run.")

    def check_grant(self, grant: Grant | QuestionGrant) -> None:
        """Refuse what no server that this client trusts would ask for.

        Raises:
            MessageError: it is not signed by the server that this client trusts, or asks for too many steps or for too
                little noise.
        """
        if grant.server_key != self.server_key or not self._is_signed(grant):
            raise MessageError("The grant is not signed by the server that this client trusts (server-key).")
        views = max(grant.augmentation_multiplicity, 1) if isinstance(grant, Grant) else 1
        if grant.steps * views > self.most_steps:
            of_views = f", each for {views} views of a record" if views > 1 else ""
            raise MessageError(
                f"The grant asks for {grant.steps} steps{of_views}; this client takes {self.most_steps} (most-steps)."
            )
        if grant.noise_multiplier < self.least_noise_multiplier:
            raise MessageError(
                f"The grant's noise multiplier is {grant.noise_multiplier}; this client adds at least "
                f"{self.least_noise_multiplier} (least-noise-multiplier)."
            )

    def task(self, word: object, own: Task | None) -> OpenedTask:
        """The task that this client works on.

        The server's word is compared with the names that are allowed, and nothing else is done with it; where the data
        owner's own app brings a task, it does not count.

        Raises:
            Refused: the task is not allowed, discloses what must stay here, or cannot be loaded; or it does not agree
                with another one that is allowed.
        """
        task = open_task(task=own) if own is not None and not self.tasks else self._allowed_task(word, own)
        self._check_agreement()
        if task.shard_sizes_public and not self.disclose_shard_size:
            raise _not_allowed(f"task {task.name} makes shard sizes public, and disclose-shard-size is false")
        return task

    def _check_agreement(self) -> None:
        """Refuse tasks that promise different things of one shard.

        A server may ask for each. What one of them tells for nothing would break what another one promises: a size that
        is public under the first cannot be protected under the second, and what is spent under two names of one dataset
        is added up by no server.
        """
        promises = [(name, _promise(name, allowed)) for name, allowed in self.tasks.items()]
        for (first, one), (second, other) in pairwise(promises):
            if one != other:
                raise _invalid(
                    f"allows tasks that do not agree: {first} ({one}) and {second} ({other}). Allow one of them; or "
                    "give both classes the same dataset, the same unit and the same shard_sizes_public"
                )

    def _allowed_task(self, word: object, own: Task | None) -> OpenedTask:
        if own is not None:
            raise _not_allowed("the app brings a task of its own, and --node-config names others; take one of both out")
        allowed = self.tasks.get(public_name(word)) if isinstance(word, str) else None
        if allowed is None:
            named = ", ".join(self.tasks) or "none: write task = in it"
            raise _not_allowed(f"the server's run names another task than --node-config ({named})")
        try:
            return allowed.load()
        except TaskError as error:
            raise _not_allowed(str(error)) from error

    def _is_signed(self, message: EnrolmentRequest | Grant | QuestionGrant) -> bool:
        return signing.signed_by_server(self.server_key, message.purpose, message.signed_bytes(), message.signature)


def _is_whole_path(text: str) -> bool:
    """Tell whether a path names one place in every working directory: a guard elsewhere would be another account."""
    return Path(text).is_absolute()


def _anything(_value: object) -> bool:
    return True


_KEYS: dict[str, tuple[type, Callable[[Any], object], str]] = {
    "folder": (str, _is_whole_path, "its whole path, from /"),
    "epsilon": (float, math.isfinite, "a finite number, such as 3.0"),
    "delta": (float, _anything, "a number, such as 1e-5"),
    "key": (str, _anything, "the name of a file"),
    "server-key": (str, re.compile(r"[0-9A-Fa-f]{64}").fullmatch, "64 hexadecimal digits"),
    "task": (str, _anything, "the name of a task"),
    "tasks": (str, _anything, "names of tasks, with commas"),
    "disclose-shard-size": (bool, _anything, "true or false"),
    "least-noise-multiplier": (float, lambda least: 0.0 < least < math.inf, "a positive number, such as 0.3"),
    "most-steps": (int, lambda most: most >= 1, "a whole number, at least 1"),
    "questions": (str, lambda text: KINDS.keys() >= {*names_in(text)}, f"some of {', '.join(KINDS)}"),
    "question-columns": (str, _anything, "names of columns, with commas"),
    "question-epsilon": (float, _anything, "a number"),
    "smallest-cohort": (float, lambda least: 0.0 <= least < math.inf, "a number, 0 or more"),
    "device": (str, is_device, "auto, cpu, cuda or cuda:N"),
    "autocast": (str, AUTOCASTS.__contains__, " or ".join(AUTOCASTS)),
    "client-id": (str, _anything, "a name"),
    "guard": (str, _is_whole_path, "its whole path, from /"),
    "filter": (str, ("", *FILTERS).__contains__, " or ".join(FILTERS)),
}
"""Every key of a node configuration: the type of its value, whether a value is right, and what to give instead."""

_FLOWER_S_OWN = {"partition-id", "num-partitions"}


def is_deployed(node: UserConfig) -> bool:
    """True if a data owner has written any key of a deployment: nothing else makes the client a simulated one then."""
    return not _KEYS.keys().isdisjoint(node)


def _problems(node: UserConfig) -> list[str]:
    """Everything that is wrong with each key by itself; of a value of another type the type alone."""
    problems = []
    if unknown := sorted(node.keys() - _KEYS.keys() - _FLOWER_S_OWN):
        near = dict.fromkeys(key for name in unknown for key in get_close_matches(name, _KEYS, 1))
        meant = f" (did you mean {' and '.join(near)}?)" if near else ""
        problems.append(f"names {', '.join(unknown)}; the keys are {', '.join(_KEYS)}{meant}")
    for name, value in node.items():
        kind, right, remedy = _KEYS.get(name, (type(value), _anything, ""))
        if type(value) is not kind and not (kind is float and type(value) is int):
            problems.append(f"gives {name} as a {type(value).__name__}; give {remedy}")
        elif not right(value):
            problems.append(f"gives {name} as {value!r}; give {remedy}")
    return problems


def _promise(name: str, allowed: AllowedTask) -> str:
    """A task's promise about the shard, in words."""
    try:
        task = allowed.load()
    except TaskError as error:
        raise _not_allowed(f"{name} is allowed, too, and cannot be held against the others: {error}") from error
    return f"dataset '{task.dataset}', for the {relation_of(task)} relation{unit_text(str(task.unit))}"


def _require(node: UserConfig, names: tuple[str, ...], code: RefusalCode, remedy: str) -> None:
    missing = [name for name in names if name not in node]
    if missing:
        raise Refused(code, f"--node-config lacks {', '.join(missing)}; name {remedy}.")


def _invalid(problem: str) -> Refused:
    return Refused(RefusalCode.NODE_CONFIG_INVALID, f"--node-config {problem}.")


def _not_answered(trait: str) -> Refused:
    return Refused(RefusalCode.QUESTION_NOT_ALLOWED, f"This client does not answer questions that are {trait}.")


def _not_allowed(reason: str) -> Refused:
    return Refused(RefusalCode.TASK_NOT_ALLOWED, f"This client does not work on the task: {reason}.")
