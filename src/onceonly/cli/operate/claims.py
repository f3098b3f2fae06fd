"""``onceonly claims``: what is unfinished, and what an operator can do about it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Unpack

import click

from onceonly.cli.common import (
    Exit,
    F,
    Group,
    Refused,
    among,
    group_option,
    json_option,
    needed_group,
    opened,
    refuse_unheard,
    store_option,
)
from onceonly.cli.operate.acting import Action, Asked, act, acting, identities, look_up
from onceonly.cli.operate.shown import as_line, record_object, say, table
from onceonly.cli.operate.wording import Condition, condition, relative
from onceonly.protocols import Store
from onceonly.settings import optional_name
from onceonly.types import Query, Record, State

_STATES = {
    Condition.IN_FLIGHT: State.CLAIMED,
    Condition.ORPHANED: State.CLAIMED,
    Condition.WAITING: State.FREE,
    Condition.QUARANTINED: State.QUARANTINED,
    Condition.FAILED: State.FAILED,
}
_SHOWN = [name for name in _STATES if name is not Condition.FAILED]
_RELEASED = frozenset((Condition.IN_FLIGHT, Condition.ORPHANED, Condition.WAITING))
_RERUN = frozenset(_STATES)
_MOST = 1_000_000  # records in one go


@click.group(cls=Group, invoke_without_command=True)
@store_option
@group_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([name.value for name in _STATES]),
    help="Only these; may be given more than once. Without it all but failed.",
)
@click.option("--limit", type=click.IntRange(1, _MOST), default=100, show_default=True, help="Of the oldest.")
@json_option
@click.pass_context
def claims(
    ctx: click.Context,
    *,
    store: str | None,
    group: str | None,
    states: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Show what is not processed, oldest first.

    In flight: a lease is running. Orphaned: the lease is over and nothing was heard. Waiting: given back,
    for the next delivery. Quarantined: kept until an operator acts. It reads the whole store.
    """
    if ctx.invoked_subcommand is not None:
        refuse_unheard(ctx)
        return
    chosen = [Condition(name) for name in states] or _SHOWN
    with opened(store) as found:
        records = _found(found, chosen, optional_name("group", group), limit + 1)
        where = "" if records else among(found, group)
    shown, more = records[:limit], len(records) > limit
    if as_json:
        for record in shown:
            as_line(record_object(record))
    elif shown:
        _show(shown)
    else:
        say(f"nothing is {' or '.join(states) or 'unfinished'}{where}", stderr=True)
    if more:
        say(f"these are the {limit:,} oldest; there are more: --limit", stderr=True)


def _all_options(states: Collection[Condition]) -> Callable[[F], F]:
    names = [name.value for name in _STATES if name in states and name is not Condition.IN_FLIGHT]
    every = click.option("--all", "every", type=click.Choice(names), help="All in this state, not keys.")
    limit = click.option("--limit", type=click.IntRange(1, _MOST), help="With --all: of the oldest.")
    return lambda fn: every(limit(fn))


@claims.command("release")
@_all_options(_RELEASED)
@acting(keys_required=False)
def release(*, every: str | None, limit: int | None, **asked: Unpack[Asked]) -> None:
    """Take claims from owners that are gone.

    The next delivery gets them at once. Whatever the last owner still writes is refused, also if it only
    stalled. Attempts are kept, and your on_orphan decides as usual. Ends with 1 if there was nothing to
    release, with 4 if a lease is running.
    """
    with _chosen(every, limit, asked) as (store, records):
        change = partial(store.revoke, force=asked["force"])
        hint = "; `onceonly claims rerun` lets it run again"
        sys.exit(act(records, Action("release", "released", change, _RELEASED, hint), asked))


@claims.command("rerun")
@_all_options(_RERUN)
@acting(keys_required=False)
def rerun(*, every: str | None, limit: int | None, **asked: Unpack[Asked]) -> None:
    """Let quarantined, failed or orphaned messages run again.

    When they are next delivered, they start from attempt 1; until then they are waiting. Your on_orphan is
    not asked: find out first whether the effect happened. The store has keys and no messages: deliver
    them again from where you keep them, such as a dead-letter queue. What is processed, or somebody
    else's by now, is left alone. Ends with 1 if there was nothing, with 4 if a lease is running.
    """
    with _chosen(every, limit, asked) as (store, records):
        change = partial(store.revoke, force=asked["force"], afresh=True)
        sys.exit(act(records, Action("run again", "set to run again", change, _RERUN), asked))


@contextmanager
def _chosen(every: str | None, limit: int | None, asked: Asked) -> Iterator[tuple[Store, list[Record]]]:
    """The records by key, or all in a state; of a scope, if one is given."""
    keys, scope, group = asked["keys"], asked["scope"], needed_group(asked["group"])
    if bool(keys) is (every is not None):
        msg = "either keys or --all, not both" if keys else "name keys, or a state with --all"
        raise Refused(msg, Exit.USAGE)
    if every is None and limit is not None:
        msg = "--limit is for --all"
        raise Refused(msg, Exit.USAGE)
    if every is not None and asked["force"]:
        msg = "--force is for keys: whose worker is surely gone must be known one by one"
        raise Refused(msg, Exit.USAGE)
    with opened(asked["store"]) as store:
        if every is None:
            yield store, look_up(store, identities(keys, group, scope), asked)
            return
        found = _found(store, [Condition(every)], group, _MOST)
        records = [record for record in found if scope in (None, record.id.scope)][:limit]
        if not records:
            where = f" with scope {scope!r}" if scope else ""
            say(f"nothing is {every}{where}{among(store, group)}", stderr=True)
        yield store, records


def _found(store: Store, conditions: Collection[Condition], group: str | None, limit: int) -> list[Record]:
    live, orphaned = Condition.IN_FLIGHT in conditions, Condition.ORPHANED in conditions
    states = frozenset(_STATES[each] for each in conditions)
    return store.find(Query(states, group, None if live is orphaned else orphaned, limit))


def _show(records: Sequence[Record]) -> None:
    now = time.time()
    rows = [
        (
            record.id.key,
            record.id.group,
            record.id.scope,
            condition(record).value,
            f"{record.attempt:,}",
            "" if record.claimed_at is None else relative(record.claimed_at, now),
            _until(record, now),
            record.type or "",
        )
        for record in records
    ]
    headers = ("key", "group", "scope", "state", "attempt", "claimed", "until", "type")
    table(headers, rows, numbers=("attempt",))


def _until(record: Record, now: float) -> str:
    """The end of the lease, or of the wait."""
    moment = record.lease_until or record.not_before
    return "" if moment is None else relative(moment, now)
