"""A file system without hard links, as a USB stick's, is named as what it is, and nothing is left on it."""

import errno
import os

import pytest

from fedprivacy._support.signing import SigningKeyError, server_key
from fedprivacy.guard import LogError
from fedprivacy.guard.log import create


@pytest.mark.parametrize(("make", "error"), [(create, LogError), (server_key, SigningKeyError)])
def test_what_cannot_be_named_once_says_why_and_what_to_do(make, error, tmp_path, monkeypatch):
    def vfat(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as mounted:
        mounted.setattr(os, "link", vfat)
        with pytest.raises(error, match="has no hard links; name a file on one that has, such as ext4"):
            make(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    make(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
