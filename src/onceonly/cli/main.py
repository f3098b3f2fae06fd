"""``onceonly``: the group of all commands."""

from __future__ import annotations

import click

from onceonly.cli.common import give_twins
from onceonly.cli.dedupe.command import dedupe
from onceonly.cli.demo.command import demo
from onceonly.cli.operate.claims import claims
from onceonly.cli.operate.completion import completion
from onceonly.cli.operate.forget import forget
from onceonly.cli.operate.peek import peek
from onceonly.cli.operate.purge import purge
from onceonly.cli.operate.stats import stats
from onceonly.cli.operate.windows import windows


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onceonly")
def command() -> None:
    """Exactly-once effects from at-least-once messages.

    Every option can also be set in the environment. Its help names the variable; ONCEONLY_STORE,
    ONCEONLY_GROUP and ONCEONLY_JSON are for all commands.

    \b
    Ends with 0 if it is done, 1 if there was nothing to do it to, 2 for a wrong option or setting,
    3 if the store or an output could not be written, 4 if a live claim is in the way, 5 if the
    input is malformed, and with 128 and the signal's number if it was told to end.
    """


for each in (claims, completion, dedupe, demo, forget, peek, purge, stats, windows):
    command.add_command(each)
give_twins(command)
