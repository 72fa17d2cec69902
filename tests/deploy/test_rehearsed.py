"""The notebook that goes from a simulation to a rehearsed deployment, on real processes."""

import pytest

from tests.written import ROOT, check_notebook


@pytest.mark.exhaustive
def test_the_notebook_of_a_rehearsed_deployment_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_notebook(ROOT / "docs/notebooks/9-deployment.md")
