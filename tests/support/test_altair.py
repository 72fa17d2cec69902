"""Altair is imported without the grammars that jsonschema may ask for, and they are there when a check needs them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

GRAMMARS = """
print("grammars are built")

def is_valid_syntax(term, value):
    return (term, value) == ("iri", "http://\u00e4")
"""

CHECKS = """
import sys
from fedprivacy import figures
from fedprivacy.runs.records import report

print("figures are imported", "rfc3987_syntax" in sys.modules)

from jsonschema import FormatChecker

print(*(FormatChecker().conforms(value, "iri") for value in ("http://\u00e4", "a b")))
"""


@pytest.mark.exhaustive
def test_grammars_of_addresses_are_built_when_one_is_checked(tmp_path):
    """A module in place of rfc3987_syntax says when it is imported, whether that is installed here or not."""
    (tmp_path / "rfc3987_syntax.py").write_text(GRAMMARS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    printed = subprocess.check_output([sys.executable, "-c", CHECKS], text=True, env=environment)
    assert printed.splitlines() == ["figures are imported False", "grammars are built", "True False"]
