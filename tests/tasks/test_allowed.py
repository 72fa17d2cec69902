"""A data owner's list of tasks: what is loaded, under which name, and that a changed file is not."""

import importlib.util
import os
import py_compile
from hashlib import sha256

import pytest

from fedprivacy.tasks import TaskError
from fedprivacy.tasks.loader import allowed_tasks

TASK = "from tests.flower.blobs import Blobs\nclass Mine(Blobs):\n    name = 'mine'\n"


def test_a_file_with_its_hash_is_loaded_and_a_changed_one_is_not_run(tmp_path):
    file, entry = tmp_path / "mine.py", f"{tmp_path}/mine.py:Mine@sha256:{sha256(TASK.encode()).hexdigest()}"
    file.write_text(TASK)
    (allowed,) = allowed_tasks([entry]).values()
    assert allowed.load().name == "mine"
    (tmp_path / "changed").mkdir()
    changed = entry.replace(str(tmp_path), f"{tmp_path}/changed")
    (tmp_path / "changed" / "mine.py").write_text(TASK + "open(__file__ + '.ran', 'w')\n")
    (allowed,) = allowed_tasks([changed]).values()
    with pytest.raises(TaskError, match=r"with SHA-256 .*, but"):
        allowed.load()
    assert not (tmp_path / "changed" / "mine.py.ran").exists()


def test_what_was_hashed_is_what_runs_whatever_bytecode_lies_beside_it(tmp_path):
    """Python takes a cached file that carries the source's time and size; its content nobody has hashed."""
    file = tmp_path / "mine.py"
    other = TASK.replace("'mine'", "'evil'")
    file.write_text(other)
    py_compile.compile(str(file), importlib.util.cache_from_source(str(file)))
    stat = file.stat()
    file.write_text(TASK)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (allowed,) = allowed_tasks([f"{file}:Mine@sha256:{sha256(TASK.encode()).hexdigest()}"]).values()
    assert allowed.load().name == "mine"


@pytest.mark.parametrize(
    "entry",
    ["unknown", ":x", "mine.py:", "digits@sha256:" + "0" * 64, "a.py:B@sha256:12", "a.py:B@md5:" + "0" * 64, "a.py:B@"],
)
def test_an_entry_that_names_no_task_is_refused(entry):
    with pytest.raises(TaskError, match="task is"):
        allowed_tasks([entry])


def test_two_files_cannot_go_by_one_name():
    with pytest.raises(TaskError, match=r"two tasks go by the name 'a\.py:B'"):
        allowed_tasks(["one/a.py:B", "two/a.py:B"])
