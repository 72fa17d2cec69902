"""Shards of a simulation side by side: the same records at several clients, and records that count for nothing."""

import pytest
import torch

import fedprivacy as fp
from fedprivacy.flower.simulated.shards import check_shards
from fedprivacy.runs.settings.configuration import ConfigError, resolve
from fedprivacy.tasks.loader import open_task


def points(seed, count=40):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator), torch.randint(2, (count,), generator=generator)


ALL = points(0, 200)


class Split(fp.Task):
    """Three clients, whose shards a function of the part's number makes."""

    recipe = fp.Recipe(clients=3, rounds=1, delta=1e-3)

    def __init__(self, made):
        self.made = made

    def model(self):
        return torch.nn.Linear(3, 2)

    def shard(self, source):
        found = self.made(source.partition_id)
        return found if isinstance(found, fp.Shard) else fp.Shard(*found)


def told(made, caplog, clients=3, computed=True, **more):
    """Return the lines that a simulation's user is told before anything is spent."""
    caplog.clear()
    task = Split(made)
    vars(task).update(more)
    device = torch.device("cpu") if computed else None
    check_shards(open_task(task=task), resolve({"clients": clients}, task), range(clients), device)
    return "\n".join(caplog.messages)


def rows(*places):
    return ALL[0][list(places)], ALL[1][list(places)]


def visits(part):
    return fp.Shard(*rows(*range(40)), persons=[n // 2 for n in range(40)], most_rows=2)


BOTH = "client-0 and client-1 hold the same records"
COPIES = {
    "the part is forgotten": (lambda part: points(0), f"{BOTH} (40 of 40), and so it is with 1 other client: a"),
    "two of three": (lambda part: points(part // 2), f"{BOTH} (40 of 40): a record"),
    "windows that overlap": (lambda part: rows(*range(10 * part, 10 * part + 40)), f"{BOTH} (30 of 40)"),
    "persons": (visits, f"{BOTH} (20 of 20)"),
}
COINCIDENCES = {
    "a split": lambda part: rows(*range(40 * part, 40 * part + 40)),
    "few values": lambda part: ((points(part)[0] > 0).float(), points(part)[1]),
    "nobody": lambda part: rows(),
    "windows that hardly overlap": lambda part: rows(*range(35 * part, 35 * part + 40)),
}


@pytest.mark.parametrize("kind", COPIES)
def test_the_same_records_at_several_clients_are_told_with_both_and_the_remedy(kind, caplog):
    made, words = COPIES[kind]
    unit = {"unit": fp.Unit("patient", 2)} if kind == "persons" else {}
    said = told(made, caplog, computed=False, **unit)
    assert words in said and "epsilon holds for none of them" in said and "part source.partition_id" in said


@pytest.mark.parametrize("kind", COINCIDENCES)
def test_records_that_merely_have_the_same_values_are_no_copies(kind, caplog):
    assert "hold the same" not in told(COINCIDENCES[kind], caplog)


def null(wrong, client=None):
    def made(part):
        inputs, targets = points(part)
        return (inputs.index_fill(0, torch.arange(wrong), torch.nan) if client in {None, part} else inputs), targets

    return made


def unknown(wrong):
    return lambda part: (points(part)[0], points(part)[1].index_fill(0, torch.arange(40 - wrong, 40), 2))


def test_records_that_count_for_nothing_are_told_for_all_clients_together(caplog):
    assert told(null(0), caplog) == ""
    assert "split: 30 of 120 records cannot be read and count for nothing." in told(null(10), caplog)
    assert "split: 3 of 120 records that were tried have no gradient" in told(unknown(1), caplog)
    said = told(null(30, client=1), caplog)
    assert "30 of 120 records cannot be read" in said and "split: more than half of those of client-1." in said


@pytest.mark.parametrize("made", [null(21), unknown(21), null(40)])
def test_a_simulation_of_which_most_records_count_for_nothing_is_refused_unless_the_task_allows_it(
    made, caplog, tmp_path
):
    with pytest.raises(ConfigError, match=r"more than half of the records count for nothing.*set allow_null = True"):
        fp.simulate(Split(made), progress=False, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert "count for nothing" in told(made, caplog, allow_null=True)
