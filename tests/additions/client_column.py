"""A column by client: the newest round whose average holds its update."""

from tests.additions.addition import Addition, after

LAST = """    last_averaged: int | None = figure(
        "newest round whose average holds its update; null: none",
        default=None,
        heading="Last averaged",
        gauge="Newest round whose average holds a client's update; missing without one.",
    )
"""

CLIENT_COLUMN = Addition(
    edits={
        "fedprivacy/values/spent.py": [
            (
                "    exhausted_in: int | None = figure(",
                f"{LAST}    exhausted_in: int | None = figure(",
            ),
        ],
        "fedprivacy/values/runs.py": [
            after(
                "        for client_id in result.participants:\n            self._answered(client_id, None)\n",
                "            self.clients[client_id].last_averaged = result.round\n",
            ),
        ],
    },
)

PROGRAM = """
import json, pathlib, sqlite3

from fedprivacy.runs.records.run import Run
from fedprivacy.runs.records.store import url_in
from tests.dashboard.shown import asking, record
from tests.runs.histories import unlike
from tests.runs.store.made_up import facts, finished, spent

history = unlike(4, rounds=8)
newest = {c: max(one.round for one in history.rounds if c in one.participants) for c in history.last.spent}
rows = {row["client_id"]: row for row in Run(pathlib.Path(), history).clients}
assert {c: row["last_averaged"] for c, row in rows.items()} == newest
assert {row["client_id"]: row["last_averaged"] for row in history.summary()["clients"]} == newest

accounts, folder = [spent(name, 0.1) for name in ("a", "b")], pathlib.Path("columns")
rounds = [finished(0, accounts), finished(1, accounts, failures={"b": "lost"})]
record(url_in(folder), facts("few", rounds=1), rounds)
with sqlite3.connect(folder / "run.db") as store:
    print(store.execute("SELECT client_id, last_averaged FROM recorded_clients").fetchall())
ask = asking(folder)
asked = {"sort": "last_averaged", "order": "asc"}
print([row["last_averaged"] for row in ask.get("/api/v1/runs/few/clients", params=asked).json()["clients"]])
described = ask.get("/api/v1/openapi.json").json()["components"]["schemas"]["Client"]["properties"]["last_averaged"]
print(described["description"])
columns = json.loads(ask.get("/static/columns.js").text.removeprefix("export const PAGE_COLUMNS = ").rstrip(";\\n"))
print([column["heading"] for column in columns if column["name"] == "last_averaged"])
print([line for line in ask.get("/metrics").text.splitlines() if line.startswith("fedprivacy_client_last_averaged{")])
"""
