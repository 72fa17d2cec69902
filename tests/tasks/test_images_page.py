"""Images of patients as docs/how-to/images.md reads and trains them, from made-up files to what leaves a client."""

import re
import sys
import types
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import fedprivacy as fp
from fedprivacy.gradients import FlatClipping, GradientEngine
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from fedprivacy.tasks import load_task
from fedprivacy.values.unit import missing
from tests.commands.running import fedprivacy, unwrapped
from tests.gradients.oracle import error_of, expected_sum, records_gradients, some_clipping_norm
from tests.house import ROOT

PAGE = (ROOT / "docs/how-to/images.md").read_text()
SLICES, BODIES, SCANS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SIDE, MOST = 64, 8
SMALL = {"(16, 16, 16)": "(8, 8, 8)", "width=8": "width=4"}


class Body(nn.Module):
    """Stands in for torchvision's ResNet-18: BatchNorm, a last stage, 512 features, a head."""

    def __init__(self, weights):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16)
        self.layer4, self.fc = nn.Conv2d(16, 512, 5, stride=5), nn.Linear(512, 1000)

    def forward(self, images):
        return self.fc(self.layer4(self.norm(self.first(images)).relu()).relu().mean((2, 3)))


def task_of(code, folder, name, instead=()):
    """A task of the page, in a file of this folder."""
    for words, others in dict(instead).items():
        assert code.count(words) == 1
        code = code.replace(words, others)
    (folder / "page.py").write_text(code)
    return load_task(f"{folder / 'page.py'}:{name}")


def noise_of(name, shape):
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)


def slices_in(folder, lines, damaged=None):
    """A site's folder: made-up slices, brighter where the label is 1, and other content in the damaged files."""
    folder.mkdir(parents=True)
    (folder / "slices.csv").write_text("\n".join(["file,patient,label", *lines]))
    damaged = damaged or {}
    for file, _, label in (line.split(",") for line in lines):
        if isinstance(damaged.get(file), bytes):
            (folder / file).write_bytes(damaged[file])
        elif file.endswith(".npy"):
            usual = (noise_of(file, (SIDE, SIDE)) * 40 + 100 + 60 * (label == "1")).clip(0, 255).astype("uint8")
            np.save(folder / file, damaged.get(file, usual))
    return fp.ShardSource(folder=folder)


def scans_in(folder, patients, shape=(8, 8, 8)):
    """A site's folder: so many made-up scans of each patient, whose mask is what is bright."""
    folder.mkdir(parents=True)
    for patient, scans in patients.items():
        (folder / patient).mkdir()
        for scan in range(1, scans + 1):
            voxels = noise_of(f"{patient} {scan}", shape)
            np.save(folder / patient / f"scan-{scan}.npy", voxels)
            np.save(folder / patient / f"mask-{scan}.npy", (voxels > 1).astype("uint8"))
    return fp.ShardSource(folder=folder)


DAMAGED = {
    "cut.npy": b"\x93NUMPY",
    "wide.npy": np.zeros((2 * SIDE, SIDE // 2), "uint8"),
    "line.npy": np.zeros(SIDE, "uint8"),
    "nan.npy": np.full((SIDE, SIDE), np.nan),
    "infinite.npy": np.full((SIDE, SIDE), np.inf),
    "objects.npy": np.array([[{}]]),
}
LINES = {
    "odd": [*(f"{file},odd,1" for file in DAMAGED), "1.npy,odd,1", "2.npy,odd,7", "3.npy,odd,"],
    "lost": ["gone.png,lost,0", ",lost,0", "../cut.png,lost,0"],
    "a7": ["4.npy,a7,0"],
    "A7": ["5.npy,A7,1"],
    "nobody": ["6.npy,,1"],
    "many": [f"{place}0.npy,many,0" for place in range(MOST + 2)],
    "either": ["7.npy,either,1", "cut.npy,either,1", "8.npy,either,0"],
}


def test_what_cannot_be_read_counts_for_nothing_and_changes_no_other_patient(tmp_path):
    task = task_of(SLICES, tmp_path, "Slices")
    shard = task.shard(slices_in(tmp_path / "all", [line for lines in LINES.values() for line in lines], DAMAGED))
    assert shard.null.tolist() == [name == "lost" for name in LINES], "a7 and A7 are two"
    assert (~missing(shard.targets)).sum(1).tolist() == [1, 0, 1, 1, 1, MOST, 2]
    assert 0.9 < shard.present().inputs.max() <= 1.0
    for place, (name, lines) in enumerate(LINES.items()):
        alone = task.shard(slices_in(tmp_path / name, lines, DAMAGED))
        assert len(alone) == 1 and torch.equal(alone.targets[0], shard.targets[place])
        assert torch.equal(alone.inputs[0], shard.inputs[place])


def test_a_patient_without_a_scan_or_with_a_mask_that_cannot_be_read_is_null(tmp_path):
    task = task_of(SCANS, tmp_path, "Organs", SMALL)
    source = scans_in(tmp_path / "site", {"ann": 1, "bob": 3, "eve": 0, "zoe": 1})
    (tmp_path / "site" / "zoe" / "mask-1.npy").unlink()
    (tmp_path / "site" / "bob" / "scan-1.npy").write_bytes(b"")
    shard = task.shard(source)
    assert shard.null.tolist() == [False, False, True, True]
    assert (~missing(shard.targets)).sum(1).tolist() == [1, 2, 0, 0], "another scan of bob's takes the place"


# --- before anything is spent ---


@pytest.mark.exhaustive
def test_the_doctor_says_how_many_patients_can_be_read_and_takes_the_patient_for_no_cell(tmp_path):
    task_of(SLICES, tmp_path, "Slices")
    slices_in(
        tmp_path / "site-0",
        [f"{n}.npy,p{n // 2},{n % 2}" for n in range(12)],
        {"3.npy": b"", "4.npy": b"", "5.npy": b""},
    )
    said = unwrapped(fedprivacy("doctor", "page.py:Slices", "--data-folder", "site-0", cwd=tmp_path).stdout)
    assert "slices: 6 patients, 5 can be read" in said
    assert "2 columns tried" in said and "One record decides" not in said


# --- what is trained ---


@pytest.mark.exhaustive
def test_gradients_of_scans_are_those_of_the_loop_by_a_fast_method(tmp_path):
    task = task_of(SCANS, tmp_path, "Organs", SMALL)
    torch.manual_seed(0)
    scans = {"ann": 1, "bob": 2, "eve": 3, "may": 2}
    shard, model = task.shard(scans_in(tmp_path / "site", scans)), task.model()
    engine = GradientEngine(model, task.loss, layout=Layout(2))
    rows = shard.by_row()
    by_scan = records_gradients(model, task.loss, rows.inputs, rows.targets)
    gradients = {name: torch.stack([g.mean(0) for g in each.split([1, 2, 2, 2])]) for name, each in by_scan.items()}
    norm = some_clipping_norm(gradients, FlatClipping())
    found = engine.clipped_sum(shard.inputs, shard.targets, norm)
    assert error_of(found, expected_sum(gradients, FlatClipping(), norm), norm) < 1e-5
    assert engine.method == "book-keeping" and engine.obstacle is None
    norms = engine.clip(shard.inputs, shard.targets, norm / 10).squared_norms[0].sqrt()
    assert (norms > norm / 10).all(), "each is clipped"
    for place in range(4):
        left = torch.arange(4) != place
        moved = engine.clipped_sum(shard.inputs, shard.targets, norm / 10) - engine.clipped_sum(
            shard.inputs[left], shard.targets[left], norm / 10
        )
        assert 0.9 < moved.norm() / (norm / 10) <= 1 + SUM_ALLOWANCE


@pytest.fixture
def bodies(tmp_path, monkeypatch):
    """The page's file with both tasks on a pretrained body, which stands in for torchvision's."""
    models = types.SimpleNamespace(resnet18=Body)
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))
    torch.manual_seed(0)
    torch.save(Body(weights=None).state_dict(), tmp_path / "resnet18.pt")
    slices_in(tmp_path / "site-0", [f"{n}.npy,p{n // 3},{n % 2}" for n in range(9)], {"1.npy": b""})
    return lambda name: task_of(SLICES + BODIES, tmp_path, name)


def test_features_are_of_each_slice_alone_and_a_head_is_trained_on_them(bodies, tmp_path):
    task = bodies("Features")
    assert task.dataset == "slices"
    shard = task.shard(fp.ShardSource(folder=tmp_path / "site-0"))
    assert shard.inputs.shape == (3, MOST, 512) and (~missing(shard.targets)).sum(1).tolist() == [2, 3, 3]
    again = bodies("Features").read(tmp_path / "site-0" / "8.npy")
    assert torch.equal(shard.inputs[2, 2], again)
    engine = GradientEngine(task.model(), task.loss, layout=Layout(MOST))
    engine.prepare(*(tensor.flatten(0, 1) for tensor in (shard.inputs, shard.targets)))
    assert engine.method == "program"


@pytest.mark.exhaustive
def test_the_last_stage_is_trained_through_the_frozen_ones_by_a_fast_method(bodies, tmp_path):
    task = bodies("Tuned")
    shard, model = task.shard(fp.ShardSource(folder=tmp_path / "site-0")), task.model()
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"layer4", "fc"}
    engine = GradientEngine(model, task.loss, layout=Layout(MOST))
    engine.prepare(*(tensor.flatten(0, 1) for tensor in (shard.inputs, shard.targets)))
    assert engine.method == "book-keeping"
