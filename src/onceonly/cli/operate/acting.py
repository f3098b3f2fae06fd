"""Before a change: which records, and does the operator mean it? After it: what really happened."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

import click

from onceonly.cli.common import Exit, F, Refused, group_option, json_option, on_terminal, store_option
from onceonly.cli.operate.shown import as_line, record_object, say
from onceonly.cli.operate.wording import Condition, condition
from onceonly.cli.signals import EndRequests
from onceonly.errors import InFlight
from onceonly.keys import check_keys
from onceonly.protocols import Store
from onceonly.settings import check_name
from onceonly.types import Record, RecordId

_MOST_NAMED = 20  # records in a question
_STEP = 500  # records per call, so that no worker waits for long
_FOR_AN_OPERATOR = (Condition.QUARANTINED, Condition.FAILED)


class Came(StrEnum):
    """What became of one record, for scripts."""

    DONE = "done"
    WOULD = "would"  # a dry run
    LEFT = "left"  # not in a state for that
    CHANGED = "changed"  # meanwhile, so it was left
    IN_FLIGHT = "in-flight"  # meanwhile, so it was left


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to records. ``change`` answers False for what is no longer as it was shown."""

    verb: str  # "release"
    past: str  # "released"
    change: Callable[[Sequence[Record]], list[bool]]
    on: frozenset[Condition]  # others are left alone
    otherwise: str = ""  # what can be done to those that wait for an operator


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


def look_up(store: Store, ids: Sequence[RecordId], asked: Asked) -> list[Record]:
    """The records there are; of the others it says that there are none."""
    found = store.peek(ids)
    for record_id, record in zip(ids, found, strict=True):
        if record is not None:
            continue
        if asked["as_json"]:
            as_line({**record_id._asdict(), "state": "absent", "came": Came.LEFT})
        else:
            say(f"{named(record_id)}: no record", stderr=True)
    return [record for record in found if record is not None]


def act(records: Sequence[Record], action: Action, asked: Asked) -> Exit:
    """Ask, do it, and say of each record what came of it. 4 if a live claim is in the way of any."""
    chosen = [record for record in records if condition(record) in action.on]
    for record in records:
        if condition(record) not in action.on:
            hint = action.otherwise if condition(record) in _FOR_AN_OPERATOR else ""
            _tell(record, Came.LEFT, f"left alone: {condition(record).value}{hint}", asked)
    if not asked["force"]:
        _refuse_live(chosen)
    if not chosen:
        return Exit.NOTHING
    if asked["dry_run"]:
        for record in chosen:
            _tell(record, Came.WOULD, f"would be {action.past} ({described(record)})", asked)
        return Exit.DONE
    count = f"{len(chosen):,} record" + ("s" if len(chosen) > 1 else "")
    question = f"{action.verb} {count}?".capitalize()
    lines = [f"{named(record.id)}: {described(record)}" for record in chosen]
    confirm(question, lines, yes=asked["yes"])
    return _carry_out(chosen, action, asked)


def _carry_out(chosen: Sequence[Record], action: Action, asked: Asked) -> Exit:
    said = {
        Came.DONE: action.past,
        Came.CHANGED: "left alone: it changed meanwhile",
        Came.IN_FLIGHT: "left alone: in flight",
    }
    came: Counter[Came] = Counter()
    with EndRequests() as told_to_end, _accounted(came, len(chosen), action):
        for at in range(0, len(chosen), _STEP):
            told_to_end.check()
            step = list(_changed(chosen[at : at + _STEP], action))
            came.update(what for _, what in step)
            for record, what in step:
                _tell(record, what, said[what], asked)
            sys.stdout.flush()
    if came[Came.IN_FLIGHT]:
        return Exit.IN_FLIGHT
    return Exit.DONE if came[Came.DONE] else Exit.NOTHING


@contextmanager
def _accounted(came: Counter[Came], whole: int, action: Action) -> Iterator[None]:
    """Whatever ends it half way, the operator is told how far it came."""
    try:
        yield
    except BaseException:
        msg = f"stopped: {came[Came.DONE]:,} {action.past}, {whole - came.total():,} not tried"
        with suppress(OSError):
            say(msg, stderr=True)
        raise


def _changed(step: Sequence[Record], action: Action) -> Iterator[tuple[Record, Came]]:
    """A claim that came alive while we asked is in nobody's way but its own."""
    try:
        answers = action.change(step)
    except InFlight:
        for record in step:
            yield record, _one(action, record)
        return
    for record, changed in zip(step, answers, strict=True):
        yield record, Came.DONE if changed else Came.CHANGED


def _one(action: Action, record: Record) -> Came:
    try:
        return Came.DONE if action.change([record])[0] else Came.CHANGED
    except InFlight:
        return Came.IN_FLIGHT


def confirm(question: str, lines: Sequence[str], *, yes: bool) -> None:
    """Return if the operator means it. Nobody is asked where nobody can answer: that is refused."""
    if yes:
        return
    if not on_terminal():
        msg = "nothing was changed: this is no terminal, so nobody can be asked. Pass --yes if you mean it"
        raise Refused(msg, Exit.USAGE)
    try:
        answer = _asked(question, lines)
    except KeyboardInterrupt:
        say("\nnothing was changed", stderr=True)
        raise
    if answer.strip().lower() not in ("y", "yes"):
        msg = "nothing was changed"
        raise Refused(msg, Exit.NOTHING)


def _asked(question: str, lines: Sequence[str]) -> str:
    for line in lines[:_MOST_NAMED]:
        say(f"  {line}", stderr=True)
    if len(lines) > _MOST_NAMED:
        say(f"  and {len(lines) - _MOST_NAMED:,} more", stderr=True)
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline()


def described(record: Record) -> str:
    attempts = f", attempt {record.attempt}" if record.attempt else ""
    return f"{condition(record).value}{attempts}"


def named(record_id: RecordId) -> str:
    return f"{record_id.key} (scope {record_id.scope})" if record_id.scope else record_id.key


def _refuse_live(records: Sequence[Record]) -> None:
    live = [record.id.key for record in records if condition(record) is Condition.IN_FLIGHT]
    if live:
        more = f" and {len(live) - 1:,} more" if len(live) > 1 else ""
        msg = (
            f"nothing was changed: {live[0]!r}{more} is in flight. Wait until its lease ends, "
            "or pass --force if its worker is surely gone"
        )
        raise Refused(msg, Exit.IN_FLIGHT)


def _tell(record: Record, came: Came, words: str, asked: Asked) -> None:
    if asked["as_json"]:
        as_line({**record_object(record), "came": came})
    else:
        say(f"{named(record.id)}: {words}")
