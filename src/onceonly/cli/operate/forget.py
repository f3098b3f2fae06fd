"""``onceonly forget``: so that the next delivery of a key runs."""

from __future__ import annotations

import sys
from functools import partial
from typing import Unpack

import click

from onceonly.cli.common import Command, needed_group, opened
from onceonly.cli.operate.acting import Action, Asked, act, acting, identities, look_up
from onceonly.cli.operate.wording import Condition


@click.command(cls=Command)
@acting(keys_required=True)
def forget(**asked: Unpack[Asked]) -> None:
    """Remove records, so that their keys run again.

    What is delivered under them after that takes effect again. To run again only what is not processed
    yet, use `onceonly claims rerun`. Ends with 1 if there was no record, with 4 if one is in flight.
    """
    ids = identities(asked["keys"], needed_group(asked["group"]), asked["scope"])
    with opened(asked["store"]) as store:
        change = partial(store.forget, force=asked["force"])
        sys.exit(act(look_up(store, ids), Action("forget", "forgotten", change, frozenset(Condition)), asked))
