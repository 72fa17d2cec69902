"""What the README promises exists and works, as typed."""

import ast
import re
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp
from fedprivacy.flower import InProcessGrid
from tests.flower.blobs import Blobs

ROOT = Path(__file__).parent.parent
README, IN_PYTHON, FLOWER_APP = (
    (ROOT / name).read_text() for name in ("README.md", "docs/how-to/in-python.md", "docs/how-to/flower-app.md")
)


def snippets(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


(FRONT,), (RUN, TRAIN), (SERVER, CLIENT) = map(snippets, (README, IN_PYTHON, FLOWER_APP))


def test_the_front_page_fits_on_a_screen_or_two_and_its_ten_lines_print_what_it_says(tmp_path, monkeypatch, capsys):
    assert len(README.splitlines()) <= 80 and README.index("make test") < README.index("import fedprivacy")
    assert len(FRONT.splitlines()) <= 10
    (printed,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(FRONT, {})
    (reached, *epsilons), (claimed, *told) = (text.splitlines() for text in (capsys.readouterr().out, printed))
    assert epsilons == told and len(told) == 4
    assert abs(float(reached.split()[1]) - float(claimed.split()[1])) <= 0.02  # two of 114 records, by another rounding


@pytest.mark.exhaustive
def test_the_script_runs_as_typed_and_as_cells_of_a_notebook_shows_figures_that_need_no_network(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = [shows(statement, names) for statement in ast.parse(RUN).body]
    run = names["run"]
    assert len(run.clients.to_pandas()) == 5 and max(client["epsilon"] for client in run.clients) <= 1.0
    assert "accuracy" in capsys.readouterr().out
    assert names["model"].in_features == 30
    assert shown[-1]._repr_svg_().startswith("<svg")
    assert "<svg" in run._repr_html_()


def shows(statement, names):
    """What a cell with one statement shows: the value of an expression."""
    if isinstance(statement, ast.Expr):
        return eval(compile(ast.Expression(statement.value), "cell", "eval"), names)
    return exec(compile(ast.Module([statement], []), "cell", "exec"), names)


def test_three_lines_train_without_a_federation(capsys):
    shard = fp.tasks.Cancer().shard(fp.ShardSource(partition_id=0, num_partitions=1))
    names = {
        "fp": fp,
        "torch": torch,
        "model": torch.nn.Linear(30, 2),
        "inputs": shard.inputs,
        "targets": shard.targets,
    }
    exec(TRAIN, names)
    trained = names["trained"]
    assert 0.99 < trained.epsilon <= 1.0
    assert (trained.model(shard.inputs).argmax(1) == shard.targets).float().mean() > 0.9
    assert "Linear(in_features=30" in capsys.readouterr().out


def test_the_five_lines_make_a_flower_app_private(tmp_path):
    assert len([line for line in (SERVER + CLIENT).splitlines() if "fp" in line or line.startswith("def")]) == 5
    names = {"app": ServerApp(), "FedAvg": FedAvg, "MyTask": Blobs}
    exec(SERVER, server_names := dict(names))
    exec(CLIENT, client_names := dict(names))
    assert isinstance(client_names["app"], ClientApp)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    run_config = {"clients": 3, "rounds": 2, "epsilon": 2.0, "ledger": ledger}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    server_names["app"](InProcessGrid(client_names["app"], 3, run_config), context)
    from fedprivacy.ledger import Ledger

    accounts = Ledger(ledger).accounts([f"blobs/client-{i}" for i in range(3)])
    assert [account.rounds for account in accounts.values()] == [2, 2, 2]
