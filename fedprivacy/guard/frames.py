"""Frames: the bytes of a log, and what they prove.

A log is a header, a slot and the entries, each in a block of its own, so that no write touches the block of another:

    0     magic, version, identity, CRC-32 of all three     written once
    4096  the slot: the frame of the last entry           overwritten before every entry
    8192  the frames of entries 1, 2, 3, ...               only ever appended to

The identity is random, and a copy has the same: it links a log to its sealed updates, whatever the log's name.

A frame is the entry's number, its length, the CRC-32 of both and of the entry, and the entry. Every entry is written to
the slot first and then behind its predecessor, each time waiting for the disk. So the last entry is always stored
twice, and an entry with a successor was wholly on the disk before the successor was begun.

Formal guarantee: let a log be changed in one place, by a crash in the middle of a write, a cut at any length, or one
byte or block that decays. `trustworthy_content` either returns at least the entries that were acknowledged, or raises.
"""

from __future__ import annotations

import enum
import secrets
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from fedprivacy.guard.errors import LogDamagedError, old_guard_error

BLOCK = 4096  # bytes; the largest sector of a disk: what one interrupted write can damage together
SLOT_AT = BLOCK
ENTRIES_AT = 2 * BLOCK

MAGIC = b"FPODOM\r\n"  # a transfer that changes line ends changes it
_VERSION = 2
_HEADER = struct.Struct(">8sI")
_IDENTITY_BYTES = 8

_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">QI")

FRAMING = _FRAME.size + _CRC.size
"""Number of bytes of a frame besides its payload."""

MOST_PAYLOAD = BLOCK - FRAMING
"""Maximum number of bytes of an entry, which the slot must hold."""


class Frame(NamedTuple):
    """An entry and its number, 1 for the first. The slot of an empty log holds number 0."""

    sequence: int
    payload: bytes


NO_ENTRY = Frame(0, b"")


class Repair(enum.Enum):
    """Repair of a log after a crash, before it can be appended to."""

    NOTHING = enum.auto()
    RENEW_SLOT = enum.auto()
    APPEND_SLOT = enum.auto()
    CUT_TAIL = enum.auto()


class Believed(NamedTuple):
    """The trustworthy content of a log: the entries that count, in order, and the repair before the next one.

    `end` is the offset, in bytes, behind the last entry that is whole among the others. With `Repair.APPEND_SLOT`, the
    last of `frames` is in the slot alone.
    """

    frames: list[Frame]
    end: int
    repair: Repair


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame."""
    head = _FRAME.pack(frame.sequence, len(frame.payload))
    return head + _CRC.pack(zlib.crc32(head + frame.payload)) + frame.payload


def decode_frame(data: bytes, at: int) -> Frame | None:
    """Decode the frame that begins at an offset; None if it is not whole."""
    if len(data) - at < FRAMING:
        return None
    sequence, length = _FRAME.unpack_from(data, at)
    if length > min(MOST_PAYLOAD, len(data) - at - FRAMING):
        return None
    frame = Frame(sequence, data[at + FRAMING : at + FRAMING + length])
    return frame if encode_frame(frame) == data[at : at + FRAMING + length] else None


def slot_block(frame: Frame) -> bytes:
    """Make the slot's block with a frame in it."""
    return encode_frame(frame).ljust(BLOCK, b"\0")


def empty_log() -> bytes:
    """Make a log without entries, with a new identity."""
    head = _HEADER.pack(MAGIC, _VERSION) + secrets.token_bytes(_IDENTITY_BYTES)
    return (head + _CRC.pack(zlib.crc32(head))).ljust(BLOCK, b"\0") + slot_block(NO_ENTRY)


def trustworthy_content(file: Path, data: bytes, last: Frame = NO_ENTRY, left_out: int = 0) -> Believed:
    """Return the trustworthy content of a log's bytes, whose header `identity_in` has read.

    Args:
        file: source of the bytes, for the error.
        data: bytes of the log, without the first entries if those are known.
        last: last of the known entries.
        left_out: number of bytes of the known entries.

    Raises:
        LogDamagedError: entries may be missing.
    """
    frames, at = _whole_frames(file, data, last, left_out)
    last = frames[-1] if frames else last
    slot, tail, end = decode_frame(data, SLOT_AT), data[at:], at + left_out
    if slot is None:
        if tail:
            raise LogDamagedError(file, end, f"entry {last.sequence + 1} is torn, and so is its copy in the slot")
        # Only a crash in the middle of writing the slot leaves this: that entry was never acknowledged.
        return Believed(frames, end, Repair.RENEW_SLOT)
    if slot.sequence == last.sequence + 1 and not _zero(tail[FRAMING + len(slot.payload) :]):
        raise LogDamagedError(file, end, f"entry {slot.sequence} is torn, and more was written behind it")
    if slot.sequence == last.sequence + 1:
        return Believed([*frames, slot], end, Repair.APPEND_SLOT)
    if slot != last:
        raise LogDamagedError(
            file, end, f"entry {last.sequence} is the last whole one, but the slot holds entry {slot.sequence}"
        )
    if not _zero(tail):
        raise LogDamagedError(file, end, f"no entry follows number {last.sequence}, but {len(tail)} bytes do")
    return Believed(frames, end, Repair.CUT_TAIL if tail else Repair.NOTHING)


def identity_in(file: Path, data: bytes) -> str:
    """Return the identity of a log, in hexadecimal.

    Args:
        file: source of the bytes, for the error.
        data: at least its first `ENTRIES_AT` bytes, or all of a shorter file.

    Raises:
        LogError: the log is of an earlier version.
        LogDamagedError: the file is not a log that this program knows.
    """
    if len(data) < ENTRIES_AT:
        raise LogDamagedError(file, len(data), f"it ends here, before its first {ENTRIES_AT} bytes, which were whole")
    magic, version = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LogDamagedError(file, 0, "it does not begin as a guard's log does")
    if version < _VERSION and _checksum_follows(data, _HEADER.size):  # else a byte of the version has decayed
        raise old_guard_error(file)
    if version > _VERSION:
        raise LogDamagedError(
            file, len(MAGIC), f"its format is version {version}, and this program knows {_VERSION}; update fedprivacy"
        )
    end = _HEADER.size + _IDENTITY_BYTES
    if version != _VERSION or not _checksum_follows(data, end):
        raise LogDamagedError(file, 0, "the header's checksum is wrong")
    return data[_HEADER.size : end].hex()


def _checksum_follows(data: bytes, end: int) -> bool:
    """Return whether the CRC-32 of the first `end` bytes stands behind them."""
    return bool(_CRC.unpack_from(data, end) == (zlib.crc32(data[:end]),))


def _whole_frames(file: Path, data: bytes, last: Frame, left_out: int) -> tuple[list[Frame], int]:
    """Return the entries behind `last` up to the first that is not whole, and the offset of their end in `data`."""
    frames: list[Frame] = []
    at = ENTRIES_AT
    while (frame := decode_frame(data, at)) is not None:
        following = last.sequence + len(frames) + 1
        if frame.sequence != following:
            raise LogDamagedError(file, at + left_out, f"entry {frame.sequence} stands where {following} belongs")
        frames.append(frame)
        at += FRAMING + len(frame.payload)
    return frames, at


def _zero(data: bytes) -> bool:
    """Return whether a filesystem may have put this behind the end: a crash can extend a file with zeros."""
    return not data.strip(b"\0")
