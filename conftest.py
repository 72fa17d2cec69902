"""What the examples in docstrings share: a folder of their own to write to."""

import pytest


@pytest.fixture(autouse=True)
def _own_folder_for_examples(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
