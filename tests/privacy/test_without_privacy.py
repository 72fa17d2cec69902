"""Training without privacy cannot be reached in a deployment, whatever a server sends: a deployed client lacks it."""

import subprocess
import sys

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

import clients.app
import server.app
from fedprivacy.flower import InProcessGrid, PrivateStrategy
from fedprivacy.flower.simulated.without_privacy import Assignment, NullBooks, plain_client
from fedprivacy.flower.wire.messages import GRANT, REFUSAL, RefusalCode
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.server.app import server_app
from tests.flower.asked import app_of, arrays_of, code, context_of, signed_grant, spent
from tests.flower.blobs import Blobs, plan_of
from tests.privacy.noted import NotedDeployment

ASSIGNMENT = Assignment("hospital", 1, 0.5).to_record()

OFF = {"privacy": False, "noise-multiplier": 0.0, "epsilon": "inf", "no-privacy": True, "null-mechanism": True}
"""Words that a server may write into the run-config, which Flower hands to its clients."""


@pytest.mark.exhaustive
def test_nothing_that_a_deployed_client_loads_trains_without_privacy():
    """Catches: the null mechanism imported where a deployed client could reach it, by however many detours.

    Neither does it load the server or the simulator, which would have to be reviewed at each hospital.
    """
    shown = "print(*sys.modules)"
    more = "from fedprivacy.flower import *; import fedprivacy.deploy.app_folder"
    code = f"import sys, clients.app; {shown}; {more}; {shown}"
    client, everything = (
        set(line.split()) for line in subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    )
    assert "fedprivacy.flower.client.client_app" in client
    elsewhere = tuple(f"fedprivacy.flower.{room}" for room in ("server", "simulated"))
    assert [name for name in client if name.startswith(elsewhere)] == []
    assert {"fedprivacy.training.dpsgd", "fedprivacy.flower.simulated.engine"} <= everything
    assert "fedprivacy.flower.simulated.without_privacy" not in everything


@pytest.mark.parametrize(
    "content",
    [
        {Assignment.name: ASSIGNMENT},
        {GRANT: ASSIGNMENT},
        {GRANT: signed_grant(noise_multiplier=0.0), Assignment.name: ASSIGNMENT},
        {GRANT: signed_grant(privacy=False)},
    ],
    ids=["assignment", "as a grant", "no noise", "a field more"],
)
def test_a_deployed_client_that_is_asked_to_train_without_refuses(node, content):
    message = Message(RecordDict({**content, "arrays": arrays_of(Blobs())}), 7, MessageType.TRAIN)
    reply = app_of()(message, context_of(node, **OFF))
    assert code(reply) is RefusalCode.GRANT_INVALID
    assert not reply.content.array_records
    assert spent(node) == 0


def test_its_app_deployed_all_the_same_refuses_every_message(node):
    """Catches: an app without privacy that asks the server, or nobody, whether this is a simulation."""
    plan = plan_of(Blobs(), privacy=False)
    app = plain_client(plan.task, plan.config)
    simulated = {"partition-id": 0, "num-partitions": 1}  # as a server might set them, without the engine's own mark
    for place in (node, node | simulated, simulated):
        for kind, content in (("query.enrol", {}), (MessageType.TRAIN, {Assignment.name: ASSIGNMENT})):
            message = RecordDict({**content, "arrays": arrays_of(Blobs())})
            reply = app(Message(message, 7, kind), Context(1, 7, place, RecordDict(), {"privacy": False}))
            assert set(reply.content) == {REFUSAL}


class Silent(InProcessGrid):
    """A grid that nothing may be sent over."""

    def push_messages(self, messages):
        raise AssertionError("something was sent")


@pytest.mark.parametrize("app", [server.app.app, server_app()], ids=["server/app.py", "server_app"])
def test_a_server_refuses_the_setting_before_anything_is_sent(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = Context(1, 1, {}, RecordDict(), {"task": "cancer", "privacy": False, "out": "run"})
    with pytest.raises(ConfigError, match="privacy is off, which 'fedprivacy simulate --no-privacy' alone can do"):
        app(Silent(clients.app.app, 2, {}), context)
    assert not (tmp_path / "run").exists()


def test_nobody_trains_privately_without_being_charged():
    """Catches: the null books, which charge nothing, under a private run."""
    with pytest.raises(ConfigError, match="privacy is off"):
        PrivateStrategy(FedAvg(), plan_of(Blobs(), privacy=False))
    with pytest.raises(ConfigError, match="RunAccounts"):
        PrivateStrategy(FedAvg(), plan_of(Blobs()), accounts=NullBooks)


def test_its_server_asks_no_deployed_client_for_an_update(tmp_path):
    plan = plan_of(Blobs(), clients=2, epsilon=3.0, seed="", signing_key=str(tmp_path / "signing.key"))
    grid = NotedDeployment(plan, tmp_path)
    without = plan_of(plan.task, clients=2, privacy=False, signing_key=str(tmp_path / "signing.key"))
    with pytest.raises(ConfigError, match="client hospital-0 is deployed"):
        PrivateStrategy(FedAvg(), without, accounts=NullBooks).start(grid)
    assert {message.metadata.message_type for message in grid.sent.values()} == {"query.enrol"}
    assert not any(grid.guard(plan, name).by_run() for name in grid.names.values())
