"""The log gives back every acknowledged entry, or raises; whatever happens to one place of the file."""

import errno
import fcntl
import itertools
import os
import resource
import stat
import struct
import zlib
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from fedprivacy.guard import Guard
from fedprivacy.guard import log as log_module
from fedprivacy.guard.errors import LogDamagedError, LogError, LogWriteError
from fedprivacy.guard.frames import (
    ENTRIES_AT,
    FRAMING,
    MOST_PAYLOAD,
    SLOT_AT,
    Frame,
    empty_log,
    encode_frame,
    slot_block,
)
from fedprivacy.guard.log import EntryLog, create
from tests.guard.account import BUDGET, EVENT, key
from tests.processes import in_child

ENTRIES = [b"one", b"", b"three, which is longer than the others", b"four"]


@pytest.fixture
def whole(file):
    """The bytes of a log of four entries."""
    create(file)
    append(file, *ENTRIES)
    return file.read_bytes()


def append(file, *payloads):
    with EntryLog(file).transaction() as append_one:
        for payload in payloads:
            append_one(payload)


def read(file, log=None):
    log = log or EntryLog(file)
    with log.transaction():
        return log.entries


def outcome(file, data, log=None):
    """The entries of a log of these bytes, or 'damaged'; `log` may have read others in their place."""
    file.write_bytes(data)
    try:
        entries = read(file, log)
    except LogDamagedError:
        assert file.read_bytes() == data, "a damaged file must be left as evidence"
        return "damaged"
    assert read(file) == entries, "what was repaired must stay repaired"
    return entries


def goes_on(file, data):
    """The entries of a torn log, once the transaction that repairs it has appended another."""
    file.write_bytes(data)
    append(file, b"after")
    return read(file)


def log_bytes(payloads, slot=None):
    frames = [Frame(number, payload) for number, payload in enumerate(payloads, start=1)]
    block = slot_block(slot or (frames[-1] if frames else Frame(0, b"")))
    return empty_log()[:SLOT_AT] + block + b"".join(encode_frame(frame) for frame in frames)


@pytest.mark.parametrize("step", [pytest.param(101, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def test_no_byte_can_change_without_being_mended_or_noticed(file, whole, step):
    seen = set()
    for offset in {*range(0, ENTRIES_AT, step), *range(ENTRIES_AT, len(whole))}:
        changed = whole[offset] ^ (1 << offset % 8 if offset % 2 else 0xFF)
        told = outcome(file, whole[:offset] + bytes([changed]) + whole[offset + 1 :])
        assert told in (ENTRIES, "damaged"), offset
        seen.add(str(told))
        if offset >= len(whole) - FRAMING - len(ENTRIES[-1]) or SLOT_AT <= offset < ENTRIES_AT:
            assert told == ENTRIES, offset  # the last entry stands twice
        elif offset >= ENTRIES_AT:
            assert told == "damaged", offset
    assert len(seen) == 2


def test_a_sector_that_decays_is_mended_or_noticed(file):
    size, entries = 512, [bytes([65 + number]) * 700 for number in range(9)]
    data = log_bytes(entries)
    for start, filling in itertools.product(range(0, len(data), size), (b"\0", b"\xff")):
        told = outcome(file, data[:start] + filling * len(data[start : start + size]) + data[start + size :])
        assert told in (entries, "damaged"), start


def test_an_entry_that_is_lost_from_the_middle_or_stands_twice_is_noticed(file, whole):
    starts = [ENTRIES_AT + n for n in itertools.accumulate((FRAMING + len(entry) for entry in ENTRIES[:-1]), initial=0)]
    for start, end in itertools.pairwise([*starts, len(whole)]):
        without = outcome(file, whole[:start] + whole[end:])
        assert without == (ENTRIES if end == len(whole) else "damaged")
        assert outcome(file, whole[:end] + whole[start:]) == "damaged"


@pytest.mark.parametrize("zeros", [0, 5000])
def test_a_torn_entry_whose_slot_is_whole_counts(file, zeros):
    before, frame = log_bytes([b"one", b"two"], slot=Frame(3, b"three")), encode_frame(Frame(3, b"three"))
    for torn in range(len(frame)):
        assert outcome(file, before + frame[:torn] + b"\0" * zeros) == [b"one", b"two", b"three"], torn
    assert goes_on(file, before + frame[:7] + b"\0" * zeros) == [b"one", b"two", b"three", b"after"]
    assert file.read_bytes()[SLOT_AT:] == log_bytes([b"one", b"two", b"three", b"after"])[SLOT_AT:]


def test_a_torn_entry_whose_slot_is_torn_too_is_damage(file, whole):
    torn = whole[: SLOT_AT + 3] + b"\xff" + whole[SLOT_AT + 4 :]
    for tail in (b"\0", b"x", whole[-5:]):
        assert outcome(file, torn + tail) == "damaged"
    assert outcome(file, whole + b"x") == "damaged"  # of unknown origin
    torn = encode_frame(Frame(2, b"two"))[:-1] + b"?"  # and one entry more than the slot's behind a torn one
    assert (
        outcome(file, log_bytes([b"one"], slot=Frame(2, b"two")) + torn + encode_frame(Frame(3, b"three"))) == "damaged"
    )


def test_a_slot_that_skips_or_repeats_a_number_is_damage(file):
    for number in (0, 1, 4, 5, 2**63):
        assert outcome(file, log_bytes([b"one", b"two"], slot=Frame(number, b"?"))) == "damaged"
    assert outcome(file, log_bytes([b"one", b"two"], slot=Frame(2, b"another two"))) == "damaged"


def test_zeros_behind_the_last_entry_are_cut_off(file, whole):
    assert outcome(file, whole + bytes(5000)) == ENTRIES
    assert goes_on(file, whole + bytes(5000)) == [*ENTRIES, b"after"]


def of_version(version, whole):
    """A log with a header that has no identity, as version 1 wrote it."""
    head = whole[:8] + struct.pack(">I", version)
    return head + struct.pack(">I", zlib.crc32(head)) + whole[16:]


def test_a_newer_version_that_this_program_does_not_know_is_refused(file, whole):
    file.write_bytes(of_version(3, whole))
    with pytest.raises(LogDamagedError, match="format is version 3, and this program knows 2; update fedprivacy"):
        read(file)


def test_a_log_of_an_older_version_is_refused_and_left_alone_but_a_decayed_version_is_damage(file, whole):
    file.write_bytes(old := of_version(1, whole))
    for _ in range(2):
        with pytest.raises(LogError) as raised:
            read(file)
        assert file.read_bytes() == old
    assert str(raised.value) == (
        f"{file} is a guard of an older form, which this version of fedprivacy does not read: what it counted stands, "
        "so keep it, move it and its folder of sealed updates elsewhere, and begin another account, whose "
        "epsilon and delta add to those of that one."
    )
    file.write_bytes(whole[:8] + struct.pack(">I", 1) + whole[12:])
    with pytest.raises(LogDamagedError, match="the header's checksum is wrong"):
        read(file)


def test_what_is_no_regular_file_is_refused(tmp_path):
    with pytest.raises(LogWriteError, match="cannot be written"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogDamagedError, match="no regular file"):
        read(tmp_path / "pipe")


def test_a_log_that_lost_entries_since_it_was_read_is_noticed_though_it_looks_whole(file, whole):
    log = EntryLog(file)
    with log.transaction():
        pass
    file.write_bytes(whole[:SLOT_AT] + log_bytes(ENTRIES[:2])[SLOT_AT:])  # a backup was put back
    with pytest.raises(LogDamagedError, match="no longer holds the 4 entries"), log.transaction():
        pass


@pytest.mark.parametrize("added", [[], [b"five"]])
def test_a_log_that_changed_since_it_was_read_is_mended_or_noticed_as_if_it_was_never_read(file, whole, added):
    data = whole[:SLOT_AT] + log_bytes([*ENTRIES, *added])[SLOT_AT:]
    for offset in range(ENTRIES_AT, len(whole)):
        file.write_bytes(whole)
        log = EntryLog(file)
        read(file, log)
        changed = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        assert outcome(file, changed, log) == outcome(file, changed), offset


def test_the_longest_entry_fits_the_slot_and_a_longer_one_is_refused(file):
    create(file)
    append(file, b"x" * MOST_PAYLOAD)
    with pytest.raises(ValueError, match=f"{MOST_PAYLOAD + 1} bytes.*at most {MOST_PAYLOAD}"):
        append(file, b"x" * (MOST_PAYLOAD + 1))
    assert read(file) == [b"x" * MOST_PAYLOAD]


def test_a_process_that_waits_too_long_is_told_so(file, whole):
    with (
        EntryLog(file).transaction(),
        pytest.raises(LogError, match=r"locked by another process for 0 s\. Nothing more was charged"),
        EntryLog(file, patience=0.0).transaction(),
    ):
        pass
    assert read(file) == ENTRIES


def test_waiting_ends_by_a_clock_that_never_jumps(file, whole, monkeypatch):
    class Clock:
        """Thirty seconds pass in six looks, while the clock on the wall runs backwards."""

        looks = 0

        def monotonic(self):
            self.looks += 1
            return 6.0 * self.looks

        def time(self):
            return -1e9 * self.looks

        def sleep(self, _):
            pass

    clock = Clock()
    monkeypatch.setattr(log_module, "time", clock)
    with EntryLog(file).transaction(), pytest.raises(LogError, match="has been locked by another process for 30 s"):
        looks = clock.looks
        with EntryLog(file, patience=30.0).transaction():
            pass
    assert clock.looks - looks == 6


def test_the_lock_ends_with_the_transaction_though_a_forked_child_has_the_file_open(file, whole):
    read_end, write_end = os.pipe()
    with EntryLog(file).transaction():
        child = os.fork()
        if child == 0:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
    try:
        with EntryLog(file, patience=0.0).transaction():
            pass
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(child, 0)


def test_each_copy_of_an_entry_is_on_the_disk_before_the_next_write_begins(file, whole, monkeypatch):
    calls = []
    pwrite, fsync = os.pwrite, os.fsync
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append(at) or pwrite(fd, data, at))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("disk") or fsync(fd))
    append(file, b"five")
    assert calls == [SLOT_AT, "disk", len(whole), "disk"]


def test_a_new_log_is_on_the_disk_before_its_name_is_and_its_name_before_it_is_used(file, monkeypatch):
    calls = []
    for name in ("pwrite", "fsync", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: calls.append(name) or real(*given))
    create(file)
    assert calls == ["pwrite", "fsync", "link", "fsync"]
    assert read(file) == [] and list(file.parent.iterdir()) == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # its owner's alone
    with pytest.raises(LogWriteError, match=r"missing/log cannot be written: No such file"):
        create(file.with_name("missing") / "log")


@pytest.mark.parametrize("room", [0, FRAMING + 3])
def test_an_entry_for_which_there_is_no_room_is_taken_back_whole(file, whole, room):
    def act():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + room, resource.RLIM_INFINITY))
        log = EntryLog(file)
        with (
            pytest.raises(LogWriteError, match=r"File too large\. Nothing more was recorded or charged") as raised,
            log.transaction() as append_one,
        ):
            append_one(b"five")
        assert raised.value.undone
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert file.read_bytes() == whole
        with log.transaction() as append_one:
            append_one(b"five")

    assert in_child(act) == 0
    assert read(file) == [*ENTRIES, b"five"]


@pytest.mark.parametrize("limit", [0, SLOT_AT + 7, ENTRIES_AT])
def test_a_file_that_may_no_longer_be_written_at_all_stays_readable(file, whole, limit):
    def act():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(LogWriteError, match="File too large") as raised, EntryLog(file).transaction() as append_one:
            append_one(b"five")
        assert raised.value.undone == (limit == ENTRIES_AT)

    assert in_child(act) == 0
    assert read(file) in (ENTRIES, [*ENTRIES, b"five"])


@pytest.mark.parametrize("confirmed", [0, 1])
def test_a_disk_that_fails_is_never_believed_to_have_forgotten(file, whole, monkeypatch, confirmed):
    """Once a disk has refused to confirm a write, no later success says what is on it."""
    real, calls = os.fsync, itertools.count()

    def fsync(fd):
        if next(calls) == confirmed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    def fail():
        with EntryLog(file).transaction() as append_one:
            monkeypatch.setattr(os, "fsync", fsync)
            append_one(b"five")

    with pytest.raises(LogWriteError, match=r"Input/output error\. What was to be recorded may count") as raised:
        fail()
    assert not raised.value.undone
    monkeypatch.setattr(os, "fsync", real)
    assert read(file) in (ENTRIES, [*ENTRIES, b"five"])


def test_a_repair_that_is_interrupted_is_done_again(file, whole):
    torn = log_bytes(ENTRIES[:3], slot=Frame(4, ENTRIES[3]))

    def act(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(LogWriteError, match="File too large"):
            read(file)

    for limit in range(len(torn), len(whole), 5):
        file.write_bytes(torn + b"garbage")
        assert in_child(partial(act, limit)) == 0
        assert read(file) == ENTRIES


def test_a_file_that_was_replaced_while_its_lock_was_awaited_is_not_used(file, whole, monkeypatch):
    real = fcntl.flock

    def flock(fd, operation):
        real(fd, operation)
        if operation & fcntl.LOCK_EX:
            other = file.with_name("other")
            other.write_bytes(whole)
            other.rename(file)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LogDamagedError, match="another file was put in its place"):
        read(file)


# --- the account that a log adds up to -------------------------------------------------------------------------------


def test_entries_tell_one_time_in_every_time_zone(file, in_kathmandu):
    """A log is read where its host is not, and hosts move: a time without a zone is nobody's."""
    before = datetime.now(UTC).replace(microsecond=0)
    Guard(file, BUDGET).charge(key(1), EVENT, 1)
    (entry,) = Guard(file, BUDGET).charges()
    told = datetime.fromisoformat(entry.time)
    assert told.utcoffset() == timedelta(0) and before <= told <= datetime.now(UTC)


def test_a_tally_that_the_disk_does_not_give_back_is_not_taken_for_an_empty_one(file, monkeypatch):
    Guard(file, BUDGET).charge(key(1), EVENT, 1)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", refuse)
        with pytest.raises(LogWriteError, match="Nothing more was recorded or charged") as raised:
            Guard(file, BUDGET).charge(key(2), EVENT, 1)
    assert raised.value.undone
    assert Guard(file, BUDGET).history() == {EVENT: 1}
