"""``onceonly``: the group of all commands."""

from __future__ import annotations

import click

from onceonly.cli.dedupe.command import dedupe
from onceonly.cli.demo.command import demo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onceonly")
def command() -> None:
    """Exactly-once effects from at-least-once messages.

    Every option can also be set in the environment, as ONCEONLY_<COMMAND>_<OPTION>.
    """


command.add_command(dedupe)
command.add_command(demo)
