"""`import fedprivacy as fp` is all that a script, a notebook or a Flower app needs."""

import inspect
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp
from fedprivacy.accounting import pld
from fedprivacy.accounting.risk import Risk
from fedprivacy.flower import InProcessGrid
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.settings.configuration import FIELDS, TRAINING_KEYS, resolve
from fedprivacy.tasks import TaskError, load_task
from tests.flower.blobs import Blobs
from tests.house import ROOT, imports, modules

LOSS = torch.nn.CrossEntropyLoss(reduction="none")

pytestmark = pytest.mark.usefixtures("undrawn")


class Coins(fp.Task):
    """The least that a task must say."""

    recipe = fp.Recipe(rounds=2, delta=1e-3)

    def model(self):
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id)
        sides = torch.randint(2, (40,), generator=generator)
        return fp.Shard(torch.randn(40, 2, generator=generator) + 3.0 * sides[:, None], sides)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def simulate(task, **settings):
    return fp.simulate(task, **{"clients": 3, "progress": False} | settings)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    return simulate(Blobs(), seed=1, out=tmp_path_factory.mktemp("runs") / "<i>blobs-1")


# --- the door itself ---


def test_to_import_it_loads_nothing_heavy_and_every_name_when_it_is_asked_for():
    code = "import fedprivacy as fp, sys; print({'torch', 'flwr', 'sqlalchemy', 'numpy', 'rich'} & sys.modules.keys())"
    printed = subprocess.check_output([sys.executable, "-c", f"{code}; print(fp.tasks.Cancer().name)"], text=True)
    assert printed.splitlines() == ["set()", "cancer"]


@pytest.mark.parametrize("package", [fp, fp.flower, fp.gradients, fp.ledger, fp.tasks])
def test_names_are_completed_before_they_are_loaded(package):
    code = f"import {package.__name__} as package; print(*dir(package))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == sorted(package.__all__)


def test_the_scripts_use_the_door_alone_and_the_reproductions_rooms_that_pages_explain():
    for script in (ROOT / "simulations").glob("*.py"):
        imported = re.findall(r"^.*\bfedprivacy\b.*import.*|^import fedprivacy.*", script.read_text(), re.MULTILINE)
        assert imported == ["import fedprivacy as fp"], script.name
    documented = ("fedprivacy.figures.", "fedprivacy.gradients", "fedprivacy.tasks.scattering")
    for path in modules("simulations/reproduce"):
        entered = {name for name in imports(path) if name.startswith("fedprivacy.")}
        assert all(name.startswith(documented) for name in entered), path


# --- simulate, and its settings ---


@pytest.mark.parametrize("function", [fp.simulate, fp.plan])
def test_every_setting_is_a_keyword_and_explained(function):
    names = {FIELDS[key].name for key in TRAINING_KEYS}
    assert names <= inspect.signature(function).parameters.keys()
    assert all(f"    {name}: " in function.__doc__ for name in names)


def test_everything_that_is_wrong_is_said_at_once_in_keywords_and_before_anything_is_spent(tmp_path):
    with pytest.raises(fp.ConfigError) as error:
        given = {"batch_size": 3, "sampling_rate": 0.1, "epsilon": -1.0}
        fp.simulate("digits", noise_multiplyer=1.0, colour="red", flavour="sour", local_steps="two", **given)
    problems = "\n".join(error.value.problems)
    for words in (
        "noise_multiplyer is not a setting. Did you mean noise_multiplier?",
        "colour is not a setting; the settings are task, clients, rounds, local_steps,",
        "flavour is not a setting.",
        "local_steps is 'two'; give a whole number.",
        "batch_size and sampling_rate both say",
        "epsilon is -1.0; choose a number",
    ):
        assert words in problems
    assert "noise-multiplier" not in problems and "local-steps" not in problems
    assert len(error.value.problems) == 6 and problems.count("the settings are") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bar_shows_the_rounds_unless_it_is_not_wanted_and_as_text_where_there_are_no_widgets(capsys, monkeypatch):
    simulate(Blobs())
    assert capsys.readouterr() == ("", "")
    simulate(Blobs(), progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert "3/3" in line and "accuracy" in line and "\x1b" not in line and "\r" not in line


def test_in_a_notebook_without_widgets_the_bar_is_one_text_that_is_replaced(capsys, monkeypatch):
    cell = []  # of each output, everything that it showed
    page = SimpleNamespace(display=lambda shown, **_: cell.append([shown]) or SimpleNamespace(update=update))

    def update(shown, raw):
        cell[-1].append(shown)

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("fedprivacy._support.console.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    simulate(Blobs(), progress=True)
    (frames,) = cell
    assert "3/3" in frames[-1]["text/plain"] and "accuracy" in frames[-1]["text/plain"]
    assert not any(character in frame["text/plain"] for frame in frames for character in "\n\r\x1b")
    assert capsys.readouterr() == ("", "")


def test_built_in_tasks_are_seeded_and_one_s_own_are_not(tmp_path):
    assert simulate("cancer", rounds=1).settings["seed"] == 0
    assert simulate(Coins(), rounds=1).settings["seed"] is None
    assert simulate(fp.tasks.Cancer(), rounds=1).settings["seed"] is None
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["cancer-1", "cancer-2", "coins-1"]


class Unhashable(Coins):
    __hash__ = None


def test_a_task_is_an_object_a_class_or_a_name(tmp_path):
    (tmp_path / "own.py").write_text(
        "import fedprivacy as fp, torch\n\nclass Own(fp.Task):\n    recipe = fp.Recipe(rounds=1, delta=1e-3)\n"
        "    def model(self):\n        return torch.nn.Linear(3, 2)\n"
        "    def shard(self, source):\n        return fp.Shard(torch.randn(20, 3), torch.zeros(20).long())\n"
    )
    for task, name, features in [(Coins(), "Coins", 2), (Coins, "Coins", 2), ("own.py:Own", "Own", 3)]:
        run = simulate(task)
        assert run.model().in_features == features
        assert run.settings["task"].rpartition(":")[2] == name
    with pytest.raises(fp.ConfigError, match=r"class Task, which makes none .*model"):
        simulate(fp.Task)
    for takes_an_object in (lambda: fp.private_client(Coins), lambda: fp.PrivateStrategy(FedAvg(), Coins, {})):
        with pytest.raises(ValueError, match=r"the class Coins and no object of it; write Coins\(\)"):
            takes_an_object()
    for task, words in ((7, "object of class int, which lacks .*model"), (Unhashable(), "which lacks __hash__")):
        with pytest.raises(fp.ConfigError, match=words):
            simulate(task)


# --- a task object and a configured task are one ---


def test_an_object_and_a_configuration_that_names_another_task_are_refused():
    both = r"task is 'digits' in the configuration, and object:Coins was given beside it"
    digits = resolve({"task": "digits"})
    for refused in (
        lambda: resolve({"task": "digits"}, Coins()),
        lambda: TrainingPlan(digits, Coins()),
        lambda: fp.PrivateStrategy(FedAvg(), Coins(), {"task": "digits"}),
        lambda: fp.private_client(Coins(), digits),
    ):
        with pytest.raises(ValueError, match=both):
            refused()
    coins = Coins()
    assert resolve({"delta": 1e-3}, coins).task == "object:Coins" == resolve({"task": "object:Coins"}, coins).task
    assert resolve({}, load_task("digits")).task == "digits"


class Interrupted(Coins):
    calls = 0

    def evaluate(self, model):
        self.calls += 1
        if self.calls == 4:  # to be tried is one; then come rounds 0, 1 and 2
            raise KeyboardInterrupt
        return {"accuracy": 0.5}


def test_a_run_of_an_object_goes_on_with_the_object_alone():
    task = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        simulate(task, rounds=4, seed=1, out="stopped")
    assert len(fp.open_run("stopped").rounds) == 1
    with pytest.raises(fp.ConfigError, match=r"give the object again, Interrupted\(\)"):
        fp.simulate(resume="stopped")
    with pytest.raises(fp.ConfigError, match="task is digits, but the run goes on with its own, object:Interrupted"):
        fp.simulate("digits", resume="stopped")
    with pytest.raises(fp.ConfigError, match="object:Coins was given beside it"):
        fp.simulate(Coins(), resume="stopped")
    run = fp.simulate(task, resume="stopped", progress=False)
    assert [row["round"] for row in run.rounds] == [1, 2, 3, 4]
    assert {client["steps"] for client in run.clients} == {4}


# --- Task, the base class ---


def test_a_task_says_its_model_and_its_records_and_has_a_default_for_the_rest():
    task = Coins()
    assert (task.name, task.dataset, task.metric, task.shard_sizes_public) == ("coins", "coins", "accuracy", True)
    outputs, targets = torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1])
    assert torch.equal(task.loss(outputs, targets), LOSS(outputs, targets))
    assert hash(task) == hash(task) and task != Coins()
    assert type("Other", (Coins,), {})().dataset == "coins"  # on the same records, unless it says otherwise
    assert type("Renamed", (Coins,), {"dataset": "elsewhere"})().dataset == "elsewhere"
    for lacking in ("model", "shard"):
        with pytest.raises(TypeError, match=lacking):
            type("Half", (Coins,), {lacking: getattr(fp.Task, lacking)})()


def test_runs_share_a_ledger_only_where_the_task_names_its_split():
    class Named(Coins):
        def partition(self, num_partitions):
            return "heads and tails"

    simulate(Named(), ledger="sqlite:///named.db")
    with pytest.raises(fp.ConfigError, match=r"client-0 has spent .* not one more step"):  # the first run spent it all
        simulate(Named(), ledger="sqlite:///named.db")
    simulate(Coins(), ledger="sqlite:///unnamed.db")
    with pytest.raises(LedgerError, match=r"partition\(\) does not name"):
        simulate(Coins(), ledger="sqlite:///unnamed.db", epsilon=3.0, noise_multiplier=9.0)


# --- Run ---


def test_a_run_is_the_same_when_it_is_opened_again(blobs):
    again = fp.open_run(blobs.folder, Blobs())
    assert again.rounds == blobs.rounds and again.clients == blobs.clients and again.metrics == blobs.metrics
    assert again.report.read_text().startswith("<!")
    for ours, theirs in zip(again.model().parameters(), blobs.model().parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_rows_are_what_the_rounds_and_the_ledger_say(blobs):
    first, *_, last = blobs.rounds
    assert last["accuracy"] == blobs.metrics["accuracy"] == Blobs().evaluate(blobs.model())["accuracy"]
    assert first["max_epsilon"] < last["max_epsilon"] == max(client["epsilon"] for client in blobs.clients)
    assert (last["participants"], last["failed"], last["exhausted"], last["unreconciled"]) == (3, 0, 3, 0)
    client = blobs.clients[0]
    event = fp.PoissonSampledGaussian(
        client["sampling_rate"], client["noise_multiplier"], fp.NeighbouringRelation.ZERO_OUT
    )
    assert client["epsilon"] == pytest.approx(pld.epsilon({event: client["steps"]}, client["delta"]))
    told = {"client_id": "client-0", "rounds": 3, "budget_epsilon": 3.0, "state": "spent as planned"}
    assert client.items() >= (told | {"exhausted_in": 3, "averaged": 3, "failed": 0}).items()


def test_rows_become_a_data_frame_where_pandas_is(blobs, monkeypatch):
    pytest.importorskip("pandas")
    frame = blobs.rounds.to_pandas()
    assert list(frame["round"]) == [1, 2, 3] and "accuracy" in frame.columns
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        blobs.rounds.to_pandas()


def test_the_model_of_an_object_needs_the_object(blobs):
    with pytest.raises(TaskError, match=r"give the object again, Blobs\(\)"):
        fp.open_run(blobs.folder).model()
    with pytest.raises(TaskError, match="object:Coins was given beside it"):
        fp.open_run(blobs.folder, Coins()).model()
    assert not fp.open_run(blobs.folder).model(Blobs()).training
    with pytest.raises(TaskError, match=r"write model\(client_id='client-0'\)"):
        blobs.model("client-0")


def test_a_run_tells_the_risk_at_the_client_that_has_spent_most(blobs, tmp_path):
    worst = max(blobs.clients, key=lambda client: client["epsilon"])
    with Ledger(f"sqlite:///{blobs.folder}/ledger.db") as ledger:
        account = ledger.accounts(ids := ledger.dataset_ids())[f"{ids[0].rpartition('/')[0]}/{worst['client_id']}"]
    charged = Risk.of_history(account.history, worst["delta"])
    for risk in (blobs.risk, fp.open_run(blobs.folder).risk):
        assert risk.found(0.05) == charged.found(0.05) and risk.epsilon == pytest.approx(worst["epsilon"], rel=1e-6)
    plain = simulate(Blobs(), privacy=False, rounds=2, out=tmp_path / "plain")
    with pytest.raises(RunFolderError, match="plain' has no client with privacy: nothing bounds"):
        _ = plain.risk


def test_what_is_not_written_yet_is_said_to_be_missing(blobs, tmp_path):
    for name in ("config.json", "run.db"):
        (tmp_path / name).write_bytes((blobs.folder / name).read_bytes())
    run = fp.open_run(tmp_path)
    with pytest.raises(RunFolderError, match=r"has no report\.html yet"):
        _ = run.report
    with pytest.raises(RunFolderError, match=r"has no model\.safetensors yet"):
        run.model(Blobs())


def loaded_from(page):
    """Whatever a page would ask a network for, or run. Names of XML are no addresses."""
    named = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    return re.findall(r"<script|<link|<img|<iframe|https?:|url\((?!#)|@import", named)


@pytest.mark.exhaustive
def test_a_run_and_its_figures_show_themselves_in_a_notebook_without_a_network(blobs):
    figures = blobs.figures
    drawn = (figures.overview, figures.accuracy, figures.epsilon, figures.tradeoff, figures.cost, figures.metric)
    pages = [draw()._repr_svg_() for draw in drawn]
    assert all(page.startswith("<svg") for page in pages)
    page = blobs._repr_html_()
    assert "client-0" in page and "<svg" in page and "&lt;i&gt;blobs-1" in page and "<i>blobs-1" not in page
    assert [loaded_from(page) for page in [*pages, page]] == [[]] * 7
    assert not any(hasattr(figures.epsilon(), name) for name in ("_repr_mimebundle_", "_repr_html_"))


# --- plan and calculator ---


def test_a_plan_is_what_the_run_then_costs(blobs):
    prospect = fp.plan(Blobs(), clients=3)
    assert [client["client_id"] for client in prospect.clients] == [client["client_id"] for client in blobs.clients]
    assert [client["epsilon_by_round"] for client in prospect.clients] == [
        pytest.approx([row["max_epsilon"] for row in blobs.rounds])
    ] * 3
    assert prospect.noise_multiplier == pytest.approx(blobs.clients[0]["noise_multiplier"])
    assert (prospect.delta, str(prospect.relation)) == (1e-3, "zero-out")


def test_the_calculator_computes_what_the_command_line_does():
    asked = {"sampling_rate": 0.01, "steps": 1000, "delta": 1e-5}
    event = fp.PoissonSampledGaussian(0.01, 1.0)
    assert fp.epsilon(noise_multiplier=1.0, **asked) == pld.epsilon({event: 1000}, 1e-5)
    past = {event: 1000}
    assert fp.epsilon(noise_multiplier=1.0, past=past, **asked) == pld.epsilon({event: 2000}, 1e-5)
    sigma = fp.noise_multiplier(epsilon=3.0, past=past, **asked)
    assert 0.999 * 3.0 <= fp.epsilon(noise_multiplier=sigma, past=past, **asked) <= 3.0
    replaced = {"sampling_rate": 1.0, "steps": 1, "delta": 1e-5, "noise_multiplier": 2.0}
    assert fp.epsilon(relation="replace-one", **replaced) > fp.epsilon(relation="zero-out", **replaced)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"sampling_rate": 2.0}, "sampling_rate is 2.0"),
        ({"relation": "cousins"}, "cousins"),
    ],
)
def test_a_question_out_of_range_is_refused(changed, words):
    asked = {"sampling_rate": 0.01, "steps": 1000, "delta": 1e-5} | changed
    with pytest.raises(ValueError, match=words):
        fp.epsilon(noise_multiplier=1.0, **asked)
    with pytest.raises(ValueError, match=words):
        fp.noise_multiplier(epsilon=1.0, **asked)


# --- a Flower app of one's own ---


def test_an_app_of_one_s_own_goes_on_from_a_checkpoint(tmp_path):
    blobs, settings = Blobs(), {"clients": 3, "seed": 1, "ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}

    def start(rounds, **options):
        strategy = fp.PrivateStrategy(FedAvg(), blobs, settings | {"rounds": 4}, checkpoints=tmp_path, **options)
        return strategy.start(InProcessGrid(fp.private_client(blobs, strategy.plan.config), 3, {}), num_rounds=rounds)

    start(2)
    start(4, resume=tmp_path)
    accounts = Ledger(settings["ledger"]).accounts([f"blobs/client-{number}" for number in range(3)])
    assert [account.rounds for account in accounts.values()] == [4, 4, 4]
    with pytest.raises(RunFolderError):
        fp.PrivateStrategy(FedAvg(), blobs, settings, resume=tmp_path / "nothing")
    with pytest.raises(fp.ConfigError, match="epsilom is not a setting"):
        fp.PrivateStrategy(FedAvg(), blobs, {"epsilom": 2.0})
