"""Before a change: which records, and does the operator mean it? After it: what really happened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import click

from onceonly.cli.common import Exit, Refused, group_option, json_option, on_terminal, store_option
from onceonly.cli.operate.shown import as_json, as_line, say
from onceonly.cli.operate.wording import Condition, condition
from onceonly.errors import InFlight
from onceonly.keys import check_keys
from onceonly.protocols import Store
from onceonly.settings import check_name
from onceonly.types import Record, RecordId

F = TypeVar("F", bound=Callable[..., Any])

_MOST_NAMED = 20  # records in a question
_STEP = 500  # records per call, so that no worker waits for long


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to records. ``change`` answers False for what is no longer as it was shown."""

    verb: str  # "release"
    past: str  # "released"
    change: Callable[[list[RecordId]], list[bool]]
    on: frozenset[Condition]  # others are left alone


class Asked(TypedDict):
    """What the operator asked for."""

    keys: tuple[str, ...]
    store: str | None
    group: str | None
    scope: str | None
    force: bool
    dry_run: bool
    yes: bool
    as_json: bool


def keys_argument(*, required: bool) -> Callable[[F], F]:
    return click.argument("keys", nargs=-1, required=required, metavar="KEY..." if required else "[KEY]...")


def scope_option(fn: F) -> F:
    return click.option("--scope", metavar="NAME", help="Of the keys, if your handlers have one.")(fn)


def acting(*, keys_required: bool) -> Callable[[F], F]:
    """The options that are :class:`Asked`."""
    options: tuple[Callable[[F], F], ...] = (
        keys_argument(required=keys_required),
        store_option,
        group_option,
        scope_option,
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--force", is_flag=True, help="Also where a lease is running: its worker is gone."),
        json_option,
    )

    def decorate(fn: F) -> F:
        for option in reversed(options):
            fn = option(fn)
        return fn

    return decorate


def identities(keys: Sequence[str], group: str, scope: str | None) -> list[RecordId]:
    """Each key once, in the order given."""
    place = check_name("scope", scope) if scope else ""
    return [RecordId(group, place, key) for key in dict.fromkeys(check_keys(keys))]


def look_up(store: Store, ids: Sequence[RecordId]) -> list[Record]:
    """The records there are; of the others it says that there are none."""
    found = store.peek(ids)
    for record_id, record in zip(ids, found, strict=True):
        if record is None:
            say(f"{record_id.key}: no record", stderr=True)
    return [record for record in found if record is not None]


def act(records: Sequence[Record], action: Action, asked: Asked) -> Exit:
    """Ask, do it, and say of each record what came of it. 4 if a live claim is in the way of any."""
    chosen = [record for record in records if condition(record) in action.on]
    for record in records:
        if condition(record) not in action.on:
            _tell(record, f"left alone: {condition(record).value}", asked, done=False)
    if not asked["force"]:
        _refuse_live(chosen)
    if not chosen:
        return Exit.NOTHING
    if asked["dry_run"]:
        for record in chosen:
            _tell(record, f"would be {action.past} ({described(record)})", asked, done=False)
        return Exit.DONE
    count = f"{len(chosen):,} record" + ("s" if len(chosen) > 1 else "")
    question = f"{action.verb} {count}?".capitalize()
    confirm(question, [described(record, key=True) for record in chosen], yes=asked["yes"])
    return _carry_out(chosen, action, asked)


def _carry_out(chosen: Sequence[Record], action: Action, asked: Asked) -> Exit:
    done = in_the_way = 0
    for record, answer in _changed(chosen, action):
        done += answer is True
        in_the_way += answer is None
        said = {True: action.past, False: "left alone: it changed meanwhile", None: "left alone: in flight"}
        _tell(record, said[answer], asked, done=answer is True)
    if in_the_way:
        return Exit.IN_FLIGHT
    return Exit.DONE if done else Exit.NOTHING


def _changed(chosen: Sequence[Record], action: Action) -> Iterator[tuple[Record, bool | None]]:
    """None where a claim came alive while we asked; the others of its step are done all the same."""
    for at in range(0, len(chosen), _STEP):
        step = chosen[at : at + _STEP]
        try:
            yield from zip(step, action.change([record.id for record in step]), strict=True)
        except InFlight:
            for record in step:
                yield record, _one(action, record)


def _one(action: Action, record: Record) -> bool | None:
    try:
        return action.change([record.id])[0]
    except InFlight:
        return None


def confirm(question: str, lines: Sequence[str], *, yes: bool) -> None:
    """Return if the operator means it. Nobody is asked where nobody can answer: that is refused."""
    if yes:
        return
    if not on_terminal():
        msg = "nothing was changed: this is no terminal, so nobody can be asked. Pass --yes if you mean it"
        raise Refused(msg, Exit.USAGE)
    for line in lines[:_MOST_NAMED]:
        say(f"  {line}", stderr=True)
    if len(lines) > _MOST_NAMED:
        say(f"  and {len(lines) - _MOST_NAMED:,} more", stderr=True)
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        msg = "nothing was changed"
        raise Refused(msg, Exit.NOTHING)


def described(record: Record, *, key: bool = False) -> str:
    name = f"{record.id.key}: " if key else ""
    attempts = f", attempt {record.attempt}" if record.attempt else ""
    return f"{name}{condition(record).value}{attempts}"


def _refuse_live(records: Sequence[Record]) -> None:
    live = [record.id.key for record in records if condition(record) is Condition.IN_FLIGHT]
    if live:
        more = f" and {len(live) - 1:,} more" if len(live) > 1 else ""
        msg = (
            f"nothing was changed: {live[0]!r}{more} is in flight. Wait until its lease ends, "
            "or pass --force if its worker is surely gone"
        )
        raise Refused(msg, Exit.IN_FLIGHT)


def _tell(record: Record, what: str, asked: Asked, *, done: bool) -> None:
    if asked["as_json"]:
        as_line({**as_json(record), "done": done, "came": what})
    else:
        say(f"{record.id.key}: {what}")
