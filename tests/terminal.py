"""Commands as they are typed, run in the tests' process."""

from functools import cache

import click.testing
from typer.main import get_command

built = cache(get_command)
"""A Typer app as Click's commands: building all of ours takes a tenth of a second, and a thousand tests type one."""


class CliRunner(click.testing.CliRunner):
    """Typer's runner, which builds an app once."""

    def invoke(self, app, *arguments, **options):
        return super().invoke(built(app), *arguments, **options)
