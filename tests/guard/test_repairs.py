"""After every repair that a crash makes necessary, a log goes on: the next entry is appended, and none is lost."""

import pytest

from fedprivacy.guard.frames import ENTRIES_AT, SLOT_AT, Frame, Repair, believed, encoded, slot_block
from fedprivacy.guard.log import EntryLog, create

ENTRIES = [b"one", b"two, which is longer"]
NEXT = Frame(3, b"three")


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "guard.log"
    create(made)
    with EntryLog(made).transaction() as append:
        for entry in ENTRIES:
            append(entry)
    return made


def slot_torn(data):
    return data[:SLOT_AT] + bytes(64) + data[SLOT_AT + 64 :]


def tail_of_zeros(data):
    return data + bytes(5000)


def entry_in_the_slot_alone(data):
    return data[:SLOT_AT] + slot_block(NEXT) + data[ENTRIES_AT:]


def entry_torn(data):
    return entry_in_the_slot_alone(data) + encoded(NEXT)[:7] + bytes(300)


@pytest.mark.parametrize(
    ("crash", "repair", "counted"),
    [
        (bytes, Repair.NOTHING, []),
        (slot_torn, Repair.RENEW_SLOT, []),
        (tail_of_zeros, Repair.CUT_TAIL, []),
        (entry_in_the_slot_alone, Repair.APPEND_SLOT, [NEXT.payload]),
        (entry_torn, Repair.APPEND_SLOT, [NEXT.payload]),
    ],
)
def test_after_a_repair_the_log_goes_on_where_it_ended(file, crash, repair, counted):
    file.write_bytes(crash(file.read_bytes()))
    assert believed(file, file.read_bytes()).repair is repair
    log = EntryLog(file)
    with log.transaction() as append:
        append(b"after")
    assert log.entries == [*ENTRIES, *counted, b"after"]
    last = Frame(len(log.entries), b"after")
    assert believed(file, file.read_bytes()).frames[-1] == last
    assert file.read_bytes()[SLOT_AT:ENTRIES_AT] == slot_block(last)
