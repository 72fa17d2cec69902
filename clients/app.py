"""The ClientApp that a data owner runs: whose word counts, the guard, the training, and the only way out.

In a deployment the data owner's node configuration decides (`fedprivacy.flower.client.node`); in a simulation each
client holds a part of the task's own split.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedprivacy.flower.client import release
from fedprivacy.flower.client.client_app import (
    ASK_ACTION,
    ENROL_ACTION,
    answer,
    answer_questions,
    questions_in,
    refusing,
    training_in,
)
from fedprivacy.flower.client.local import client_for, client_to_enrol

app = ClientApp()


@app.query(ENROL_ACTION)
@refusing  # an error leaves as a constant code, its text stays in this client's log
def enrol(message: Message, context: Context) -> Message:
    """Say who this client is: its name, public facts, and what its own guard holds."""
    client = client_to_enrol(message, context)  # if the server that the data owner trusts signed it
    return release.enrolment(message, client.public_facts())


@app.query(ASK_ACTION)
@refusing
def ask(message: Message, context: Context) -> Message:
    """Answer questions that the data owner allows, privately, and paid for."""
    grant = questions_in(message)
    client = client_for(grant, context)  # if that server signed it
    return release.update(message, answer_questions(client, grant))  # charged to the guard, then summed, then sealed


@app.train()
@refusing
def train(message: Message, context: Context) -> Message:
    """Answer a grant with an update that is differentially private, and paid for."""
    request = training_in(message)
    client = client_for(request.grant, context)  # if that server signed it: the allowed task, the shard, the guard
    released = answer(client, request)  # charged to the guard, then trained, then sealed
    return release.update(message, released)
