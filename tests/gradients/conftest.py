"""Fixtures for tests of gradients."""

import pytest

from fedprivacy.gradients.products import one_row_at_a_time


@pytest.fixture
def rows_alike():
    """Products that treat all rows alike, on whatever processor, so that what is tested is all the rest."""
    with one_row_at_a_time():
        yield
