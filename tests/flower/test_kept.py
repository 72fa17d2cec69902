"""What a client keeps on its disk: by run, task and algorithm, and no other run's is lost."""

import json
import os
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import save_file

from fedprivacy.flower import kept as keeping
from fedprivacy.flower.kept import KeptError, KeptFor, KeptInFolder


@pytest.fixture
def store(tmp_path):
    return KeptInFolder(tmp_path / "guard.log.kept")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(keeping, "MOST_RUNS", 3)


def of(run, algorithm="local", round=1, task="wards/sick"):
    return KeptFor(run, algorithm, round, task)


def number(value):
    return torch.full((2,), float(value))


def test_each_run_task_and_algorithm_has_its_own(store):
    whose = [of("run"), of("other"), of("run", "ditto"), of("run", task="wards/well")]
    for place, one in enumerate(whose):
        store.keep(one, number(place))
    assert [store.load(one._replace(round=2)).tolist()[0] for one in whose] == [0.0, 1.0, 2.0, 3.0]
    assert store.load(of("run", "ditto", 2, "wards/well")) is None
    assert store.kept_vectors() == whose[::-1]


def test_a_finished_run_s_model_gives_way_to_no_other_run(store, few):
    store.keep(of("finished"), number(7))
    for other in range(9):
        with (
            pytest.raises(KeptError, match=r"holds models of 3 runs, .* delete the files")
            if other > 1
            else nullcontext()
        ):
            store.load(of(f"run-{other}"))
            store.keep(of(f"run-{other}"), number(other))
        for algorithm in range(9):
            store.keep(of("run-0", str(algorithm)), number(algorithm))
    assert store.load(of("finished", round=2)).tolist() == [7.0, 7.0]
    assert len(list(store.folder.iterdir())) == 1 + 1 + keeping.MOST_OF_A_RUN


def test_what_gives_way_is_what_was_written_first_whatever_the_clock_says(store):
    """A clock that is set back would make the newest file the oldest one."""
    algorithms = [str(place) for place in range(keeping.MOST_OF_A_RUN + 3)]
    for place, algorithm in enumerate(algorithms):
        store.keep(of("run", algorithm), number(place))
        for file in store.folder.iterdir():
            os.utime(file, (1e9 - place, 1e9 - place))
    left = [one.algorithm for one in store.kept_vectors()]
    assert left == algorithms[-keeping.MOST_OF_A_RUN :][::-1]


def test_a_file_that_is_damaged_stops_no_other_run_and_takes_its_place(store, few):
    store.keep(of("run"), number(1))
    (store.folder / "damaged.safetensors").write_bytes(b"nothing")
    store.keep(of("run", round=2), number(2))
    assert store.load(of("run", round=3)).tolist() == [2.0, 2.0]
    store.keep(of("other"), number(3))
    with pytest.raises(KeptError, match="holds models of 3 runs"):
        store.load(of("third"))
    with pytest.raises(KeptError, match=r"'.*damaged\.safetensors' cannot be read"):
        store.kept_vectors()


def test_a_file_without_its_facts_is_refused(store):
    store.folder.mkdir()
    facts = json.dumps({"run_id": "old", "algorithm": "local"})
    save_file({"3": number(1)}, store.folder / "old.safetensors", {"fedprivacy-kept": facts})
    with pytest.raises(KeptError, match=r"'.*old\.safetensors' cannot be read \('task'\); put back an undamaged copy"):
        store.kept_vectors()
