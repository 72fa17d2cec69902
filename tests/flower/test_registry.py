"""Who a node is: the operator's registration in a deployment, the client's own word only in a simulation."""

import time

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from fedprivacy._support import signing
from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.flower import InProcessGrid, TooFewClientsError
from fedprivacy.flower.client import release
from fedprivacy.flower.server.nodes import ClientRegistry, Eligible
from fedprivacy.flower.wire.messages import ENROLMENT, ENROLMENT_REQUEST, Enrolment, EnrolmentRequest, RefusalCode
from fedprivacy.tasks.identity import key_hash

PEM = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"


@pytest.fixture
def key(tmp_path):
    """Where the server's signing key lies, once it is needed."""
    return tmp_path / "server.key"


def grid_of(*nodes):
    """Clients that all call themselves `mallory`, on nodes with these (name, public key)."""
    app = ClientApp()

    @app.query("enrol")
    def enrol(message, context):
        return Message(RecordDict({ENROLMENT: Enrolment("mallory", 7, 0, "").to_record()}), reply_to=message)

    grid = InProcessGrid(app, len(nodes), {})
    infos = [NodeInfo(node_id=i, name=n, public_key=k) for i, (n, k) in zip(grid.get_node_ids(), nodes, strict=True)]
    grid.get_nodes = lambda: infos
    return grid


def test_a_registered_name_wins_and_is_asked_with_a_request_that_is_signed_for_its_node_and_this_run(key):
    grid, registry, asked = grid_of(("hospital-0", PEM), ("hospital-1", PEM + b"x")), ClientRegistry(0.1, key), []
    push = grid.push_messages
    grid.push_messages = lambda messages: asked.extend(m.content[ENROLMENT_REQUEST] for m in messages) or push(messages)
    registry.wait_for(grid, 2)
    told = [(client.client_id, client.key_hash) for client in registry.online(grid).values()]
    assert told == [("hospital-0", key_hash(PEM)), ("hospital-1", key_hash(PEM + b"x"))]
    public = server_public_key(server_key(key))
    for record, pem in zip(asked, (PEM, PEM + b"x"), strict=True):
        request = EnrolmentRequest.from_record(record)
        assert signing.signed_by_server(public, signing.ENROLMENT, request.signed_bytes(), request.signature)
        assert (request.run_id, request.client_key) == (str(grid.run.run_id), key_hash(pem))


def test_a_supernode_without_a_name_and_two_of_one_name_are_refused_with_the_remedy(key):
    with pytest.raises(TooFewClientsError, match=r"Node \d+: .*--enable-supernode-auth.*--name CLIENT"):
        ClientRegistry(0.1, key).wait_for(grid_of(("", PEM)), 1)
    with pytest.raises(TooFewClientsError, match=r"s\. hospital-0: another node is enrolled"):
        ClientRegistry(0.1, key).wait_for(grid_of(("hospital-0", PEM), ("hospital-0", PEM)), 2)


def test_a_client_that_refuses_is_not_waited_for(key):
    app = ClientApp()
    app.query("enrol")(lambda message, _: release.refusal(message, RefusalCode.SEED_IN_DEPLOYMENT))
    started = time.monotonic()
    with pytest.raises(TooFewClientsError, match=r"it refused \(seed-in-deployment\)"):
        ClientRegistry(600.0, key).wait_for(InProcessGrid(app, 2, {}), 2)
    assert time.monotonic() - started < 300.0


def test_a_node_that_flower_takes_for_lost_is_asked_again_while_there_is_time(key):
    """It is back, and taken for lost twice more, such as behind a proxy that was started again."""
    app, asked = ClientApp(), []

    @app.query("enrol")
    def enrol(message, _):
        asked.append(message)
        gone = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return gone if len(asked) <= 4 else release.enrolment(message, Enrolment("a", 1, 1, ""))

    grid, registry = InProcessGrid(app, 1, {}), ClientRegistry(60.0, key)
    registry.wait_for(grid, 1)
    assert [client.client_id for client in registry.online(grid).values()] == ["a"]
    assert len(asked) == 5  # each time twice at once


class Nodes:
    """A grid on which so many nodes are connected; the answers of clients are not needed."""

    def __init__(self, nodes):
        self.node_ids = list(nodes)

    def get_node_ids(self):
        return list(self.node_ids)

    def get_nodes(self):
        return [NodeInfo(node_id=node_id) for node_id in self.node_ids]


def test_who_is_online_who_arrived_and_who_may_be_asked_follow_the_nodes(key):
    grid, registry = Nodes([4, 2]), ClientRegistry(0.1, key)
    registry.take_in({node: Enrolment(f"client-{node:05}", 7, 0, "") for node in range(5)})
    everybody = {f"client-{node:05}" for node in range(5)}
    assert list(registry.online(grid)) == registry.eligible(grid, Eligible(everybody, ())) == [2, 4]
    assert [client.client_id for client in registry.new_arrivals(grid)] == ["client-00002", "client-00004"]
    assert registry.new_arrivals(grid) == []
    assert registry.eligible(grid, Eligible(everybody, ["client-00002"])) == [4]
    assert registry.eligible(grid, Eligible(everybody - {"client-00004"}, ())) == [2]
    grid.node_ids = [0, 4]
    assert registry.eligible(grid, Eligible(everybody, ())) == [0, 4]
    assert [client.client_id for client in registry.new_arrivals(grid)] == ["client-00000"]
    registry.learn({"client-00004": 12.0})
    assert registry.online(grid)[4].answered == 12.0
    assert [client.client_id for client in registry.new_arrivals(grid)] == ["client-00004"]


@pytest.mark.parametrize("nodes", [[("hospital-0", PEM)] * 2, [("", b"")] * 2], ids=["deployed", "simulated"])
@pytest.mark.parametrize("again", [[0, 1], [1, 0]], ids=["old first", "new first"])
def test_a_client_that_came_back_as_another_node_is_asked_there_though_its_old_node_is_seen_again(key, nodes, again):
    """Catches: the node that is silent by now, whichever of the two Flower lists first."""
    grid, registry = grid_of(*nodes), ClientRegistry(0.1, key)
    infos = grid.get_nodes()
    for seen in ([0], [1], again):
        connected = [infos[place] for place in seen]
        grid.get_nodes = lambda connected=connected: connected
        grid.get_node_ids = lambda connected=connected: [info.node_id for info in connected]
        registry.enrol_new(grid)
    assert list(registry.online(grid)) == [infos[1].node_id]
