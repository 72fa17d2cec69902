"""Whatever a run measures has a name, is shown and can be compared, whichever method of the task measured it."""

import csv
import math
import re
from functools import reduce
from pathlib import Path

import pytest
import torch

import fedprivacy as fp
from tests.commands.running import fedprivacy
from tests.flower.blobs import Blobs
from tests.runs.rounds import rounds_of

SETTINGS = {"clients": 4, "rounds": 3, "epsilon": 3.0, "seed": 1, "progress": False}


class WholeBlobs(Blobs):
    """Blobs that are measured on each client's held-out records alone; the last client's are of one class."""

    evaluate = fp.Task.evaluate

    def held_out(self, source):
        kept = self.shard(source)
        noise = torch.randn(kept.inputs.shape, generator=torch.Generator().manual_seed(source.partition_id))
        kept = fp.Shard(kept.inputs + 2.0 * noise, kept.targets)
        if source.partition_id == 3:
            return fp.Shard(kept.inputs[kept.targets == 0], kept.targets[kept.targets == 0])
        return fp.Shard(kept.inputs[:9], kept.targets[:9])

    def held_out_metrics(self, model, records):
        from sklearn.metrics import roc_auc_score

        if len(set(records.targets.tolist())) < 2:
            return {"auc": math.nan, "size": len(records.inputs)}
        scores = model(records.inputs).softmax(1)[:, 1]
        return {"auc": float(roc_auc_score(records.targets, scores)), "size": len(records.inputs)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("measured") / "whole"
    return fp.simulate(WholeBlobs(), algorithm="mr-mtl", pull=0.5, out=out, **SETTINGS)


@pytest.mark.exhaustive
def test_a_metric_of_a_client_s_records_as_a_whole_is_that_of_its_model_on_them(whole):
    task, expected = WholeBlobs(), {}
    for part in range(4):
        records = task.held_out(fp.ShardSource(partition_id=part, num_partitions=4))
        with torch.no_grad():
            model = whole.model(client_id=f"client-{part}")
            loss = float(task.loss(model(records.inputs), records.targets).double().mean())
            expected[f"client-{part}"] = task.held_out_metrics(model, records) | {"loss": loss}
    found = {row["client_id"]: row for row in whole.held_out}
    assert found["client-3"]["auc"] is None and found["client-3"]["size"] == expected["client-3"]["size"]
    assert all(found[client]["loss"] == pytest.approx(its["loss"]) for client, its in expected.items())
    assert [bool(record.held_out) for record in whole.history.rounds] == [False, False, True]
    known = [expected[f"client-{part}"]["auc"] for part in range(3)]
    assert [found[f"client-{part}"]["auc"] for part in range(3)] == pytest.approx(known)
    assert len(set(known)) > 1  # else a mean could be any of them
    assert whole.metrics["each_auc"] == pytest.approx(sum(known) / 3)
    assert (whole.metrics["each_auc_least"], whole.metrics["each_auc_most"]) == pytest.approx((min(known), max(known)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("auc", 0.5)], "held_out_metrics() returns a list; return numbers by name"),
        ({"auc": "high"}, "held_out_metrics() returns a str for 'auc'"),
        ({"loss": 0.5}, "returns 'loss', as a score of scores() is called; call one of them otherwise"),
        (ZeroDivisionError("by zero"), "held_out_metrics() fails"),
    ],
)
def test_what_cannot_be_a_metric_is_refused_before_anything_is_charged(given, told):
    class Wrong(WholeBlobs):
        def held_out_metrics(self, model, records):
            if isinstance(given, Exception):
                raise given
            return given

    with pytest.raises(fp.ConfigError) as raised:
        fp.simulate(Wrong(), out="wrong", **SETTINGS)
    assert told in str(raised.value)
    assert not Path("wrong").exists()


class Unmeasured(Blobs):
    """Blobs that nobody measures."""

    evaluate = fp.Task.evaluate


@pytest.mark.exhaustive
def test_runs_that_measured_nothing_are_compared_and_said_to_measure_nothing(undrawn):
    first, second = (fp.simulate(Unmeasured(), out=name, **SETTINGS) for name in ("a", "b"))
    assert "not measured" in fp.compare(first, second).save("compared").read_text()
    assert not Path("compared/compare.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_early_stopping_takes_the_nearest_metric_and_goes_on_with_it():
    stopping = fp.EarlyStopping(patience=1, least_change=1.0)
    run = fp.simulate(WholeBlobs(), out="run", callbacks=[stopping], held_out_evaluation=1, **SETTINGS | {"rounds": 6})
    assert (run.history.finished, stopping.metric) == (2, "each_accuracy")
    assert rounds_of(run.folder)[-1]["metrics"]["each_auc"] > 0.0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_from_an_empty_folder_to_five_algorithms_by_the_auc_of_each_client_in_two_commands_and_one_file(tmp_path):
    """The page's file and commands as typed, but for two rounds, two epsilons and one seed."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md").read_text()
    (file,) = re.findall(r"```python\n(import torch.*?)```", text, re.DOTALL)
    commands = re.findall(r"```sh\n(fedprivacy sweep.*?)```", text, re.DOTALL)[0].strip().splitlines()
    assert (len(file.splitlines()) <= 40, len(commands)) == (True, 2)
    (tmp_path / "fields.py").write_text(file)
    smaller = {"--epsilon 1,3,8": "--epsilon 1,8 --rounds 2 --jobs 1", "--seeds 2": "--seeds 1"}
    typed = [reduce(lambda text, pair: text.replace(*pair), smaller.items(), command) for command in commands]
    assert typed[0] != commands[0]
    swept, listed = (fedprivacy(*command.split()[1:], cwd=tmp_path).stdout for command in typed)
    rows = list(csv.DictReader((tmp_path / "sweeps" / "fields" / "sweep.csv").open()))
    assert len(rows) == 5 * (2 + 2) and {row["algorithm"] for row in rows if row["each_auc"]} == {
        *("local", "fedavg", "mr-mtl", "ditto", "scaffold")
    }
    assert "each auc" in swept and "each auc" in listed
    assert "private learning rate" not in " ".join(swept.split())  # the baseline has rates of its own
    assert (tmp_path / "sweeps" / "fields" / "sweep.png").read_bytes().startswith(b"\x89PNG")
