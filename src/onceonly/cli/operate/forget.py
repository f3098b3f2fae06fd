"""``onceonly forget``: so that the next delivery of a key runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Unpack

import click

from onceonly.cli.common import Command, needed_group, opened
from onceonly.cli.operate.acting import Action, Asked, act, acting, identities, look_up
from onceonly.cli.operate.wording import Condition
from onceonly.protocols import Store
from onceonly.types import Record, RecordId


@click.command(cls=Command)
@acting(keys_required=True)
def forget(**asked: Unpack[Asked]) -> None:
    """Remove records, so that their keys run again.

    What is delivered under them after that takes effect again. To run again only what is not processed
    yet, use `onceonly claims rerun`. What is in another state by then than it was shown is left alone.
    Ends with 1 if there was no record, with 4 if one is in flight.
    """
    ids = identities(asked["keys"], needed_group(asked["group"]), asked["scope"])
    with opened(asked["store"]) as store:
        action = Action("forget", "forgotten", partial(_forget, store, asked["force"]), frozenset(Condition))
        sys.exit(act(look_up(store, ids, asked), action, asked))


def _forget(store: Store, force: bool, shown: Sequence[Record]) -> list[bool]:  # noqa: FBT001 - for partial
    """What was shown as an orphan and is processed by now is not what the operator agreed to."""
    answers: dict[RecordId, bool] = {}
    for state in {record.state for record in shown}:
        ids = [record.id for record in shown if record.state is state]
        answers |= dict(zip(ids, store.forget(ids, force=force, only={state}), strict=True))
    return [answers[record.id] for record in shown]
