"""Nothing public disappears without a word: scripts and run files of the version before go on working."""

from pathlib import Path

from tests.public_names import public_names

FILE = Path(__file__).parent / "public_names.txt"


def test_every_public_name_of_before_is_there_and_new_ones_are_written_down():
    """To take a name away, deprecate it first: CONTRIBUTING.md says how. New names: python -m tests.public_names."""
    before, now = FILE.read_text().splitlines(), public_names()
    assert sorted(set(before) - set(now)) == []
    assert sorted(set(now) - set(before)) == []
