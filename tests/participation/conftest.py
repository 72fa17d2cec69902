"""A fixture that the tests of participation share."""

import pytest


@pytest.fixture
def trace(tmp_path):
    """Writes a trace, and gives its name."""

    def write(*lines):
        file = tmp_path / "trace.csv"
        file.write_text("\n".join(lines) + "\n")
        return str(file)

    return write
