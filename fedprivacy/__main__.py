"""`python -m fedprivacy`: the command line."""

from fedprivacy.commands.app import app

app()
