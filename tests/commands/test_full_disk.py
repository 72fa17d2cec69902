"""A disk that is full, or a folder that nobody may write to, before, in and after the rounds of a simulation."""

import json
import os
from unittest import mock

import pytest

from fedprivacy._support.durable import append_durably
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.run import open_run
from tests.commands import stopping
from tests.commands.running import fedprivacy
from tests.commands.stopped import at, options, results

KB = 1024


def full(place, moment, free):
    """The environment in which a run fills its disk, but for so many bytes."""
    return at(moment, place, "disk/run") | {stopping.FILL: f"{place / 'disk'}:{free}"}


LEDGER = ("--ledger", "sqlite:///ledger.db")  # on another disk


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("moment", "rounds", "going_on"),
    [("recording:1", 0, 0), ("recording:3", 1, 1)],  # before the first round; and a later one
)
def test_a_disk_that_fills_up_between_rounds_stops_the_run_and_it_goes_on_with_room(
    moment, rounds, going_on, disk, place, whole
):
    with mock.patch.dict(os.environ, full(place, moment, free=0)):
        failed = fedprivacy("simulate", *options(place, *LEDGER, out="disk/run"), cwd=place, code=2)
    assert "error: 'disk/run' cannot be written: No space left on device. Free space on its disk" in failed.stderr
    assert "fedprivacy simulate --resume disk/run" in failed.stderr and "Traceback" not in failed.output
    assert rounds == 0 or len(read_history(disk / "run").rounds) == rounds
    (disk / "filler").unlink()
    gone_on = fedprivacy("simulate", "--resume", "disk/run", cwd=place)
    assert f"Going on after round {going_on} of 4." in gone_on.stderr
    assert results(disk / "run") == whole
    assert not list((disk / "run").glob(".*"))


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(disk):
    append_durably(disk / "lines", b"whole\n")
    stopping.fill(disk, 0)
    with pytest.raises(OSError, match="No space left"):
        append_durably(disk / "lines", bytes(10 * KB))
    assert (disk / "lines").read_bytes() == b"whole\n"


@pytest.mark.exhaustive
def test_a_run_that_cannot_be_drawn_is_kept_and_drawn_later(disk, place):
    with mock.patch.dict(os.environ, full(place, "recording:5", free=48 * KB)):
        ran = fedprivacy("simulate", "--json", *options(place, *LEDGER, out="disk/run"), cwd=place, code=1)
    assert json.loads(ran.stdout)["rounds"] == 4
    assert not (disk / "run" / "figure.png").exists() and not (disk / "run" / "report.html").exists()
    assert open_run(disk / "run").model().weight.isfinite().all()
    refused = fedprivacy("report", "disk/run", cwd=place, code=2)
    assert "error: 'disk/run' cannot be written: No space left on device." in refused.stderr
    drawn = fedprivacy("report", "disk/run", "--out", "elsewhere", cwd=place)
    assert "Report: elsewhere/report.html" in drawn.stdout
    assert (place / "elsewhere" / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def locked(tmp_path):
    """A folder that this process may not write to: it gives up the rights of root, which may write anywhere."""
    folder, before = tmp_path / "locked", os.geteuid()
    folder.mkdir()
    for each in (folder, tmp_path, tmp_path.parent):
        each.chmod(0o555 if each == folder else 0o755)
    if before == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(before)


def test_a_folder_without_permission_is_refused(locked):
    refused = fedprivacy("simulate", "--rounds", "1", "--out", str(locked / "run"), cwd="/", code=2)
    assert "which cannot be written: Permission denied; name another folder" in refused.stderr
