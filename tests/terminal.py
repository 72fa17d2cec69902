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


def typed(app, *arguments):
    """Exit code, output and errors of a command, which ends with a code and never with an exception."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
