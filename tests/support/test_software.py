"""The digest of this program's files: bytecode is no part of it."""

from fedprivacy._support import software


def test_bytecode_is_no_part_of_the_digest_not_even_while_python_writes_it(tmp_path, monkeypatch):
    package = tmp_path / "fedprivacy"
    (package / "_support" / "__pycache__").mkdir(parents=True)
    (package / "_support" / "software.py").write_text("one = 1")
    monkeypatch.setattr(software, "__file__", str(package / "_support" / "software.py"))
    before = software.software.__wrapped__()
    for name in ("software.cpython-311.pyc", "software.cpython-311.pyc.140234865912400"):
        (package / "_support" / "__pycache__" / name).write_bytes(b"bytecode")
        assert software.software.__wrapped__() == before
    (package / "other.py").touch()
    assert software.software.__wrapped__() != before
