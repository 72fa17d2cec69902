"""Fixtures for tests of gradients."""

from contextlib import nullcontext

import pytest

from fedprivacy.gradients.products import as_on_gpu, one_row_at_a_time


@pytest.fixture
def rows_alike():
    """Products that treat all rows alike, on whatever processor, so that what is tested is all the rest."""
    with one_row_at_a_time():
        yield


@pytest.fixture(params=[nullcontext, as_on_gpu], ids=["cpu", "as a GPU"])
def both_ways(request):
    """Computes in a CPU's ways, then in a GPU's."""
    with request.param():
        yield
