"""A guard's file, and a guard that keeps its account there."""

import pytest

from fedprivacy.guard import Guard
from tests.guard.account import BUDGET


@pytest.fixture
def file(tmp_path):
    return tmp_path / "guard.log"


@pytest.fixture
def guard(file):
    return Guard(file, BUDGET)
