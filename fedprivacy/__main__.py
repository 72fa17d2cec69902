"""`python -m fedprivacy`: the command line."""

from fedprivacy.cli import app

app()
