"""`python -m fedprivacy`: the command line."""

from fedprivacy.commands.app import app

if __name__ == "__main__":  # a sweep's processes import this module again, by another name
    app()
