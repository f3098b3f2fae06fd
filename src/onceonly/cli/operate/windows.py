"""``onceonly windows``: how long messages are remembered, changed while workers run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from onceonly.cli.common import (
    Exit,
    F,
    Group,
    among,
    complete_group,
    group_option,
    json_option,
    opened,
    refuse_unheard,
    store_option,
)
from onceonly.cli.operate.acting import confirm
from onceonly.cli.operate.shown import as_line, both, say, table
from onceonly.cli.operate.wording import moment_and_age, window
from onceonly.protocols import Store
from onceonly.settings import check_name, optional_name
from onceonly.types import ReadWindows, StoredWindow
from onceonly.windows import PRESETS, REFRESH, window_seconds

_NONE = "none"


@click.group(cls=Group, invoke_without_command=True)
@store_option
@group_option
@json_option
@click.pass_context
def windows(ctx: click.Context, *, store: str | None, group: str | None, as_json: bool) -> None:
    """Show or set windows while workers run.

    What is set in the store wins over the code. Running workers follow within seconds; a window counts for
    what is completed later.
    """
    if ctx.invoked_subcommand is not None:
        refuse_unheard(ctx)
        return
    with opened(store) as found:
        (stored,) = found.windows([ReadWindows(group)])
        where = among(found, group) if not stored else ""
    if as_json:
        for each in stored:
            as_line(_object(each))
        return
    if not stored:
        say(f"no window is set in the store{where}: those in the code count", stderr=True)
        return
    now = time.time()
    rows = [(e.group, e.type or "", window(e.window), moment_and_age(e.updated_at, now)) for e in stored]
    table(("group", "type", "window", "set"), rows)


def _complete_window(_ctx: object, _parameter: object, incomplete: str) -> list[str]:
    return [name for name in (*PRESETS, _NONE) if name.startswith(incomplete)]


def _type_option(text: str) -> Callable[[F], F]:
    return click.option("--type", "kind", metavar="NAME", help=text)


@windows.command("set")
@click.argument("group", shell_complete=complete_group)
@click.argument("length", metavar="WINDOW", shell_complete=_complete_window)
@_type_option("Only for messages of this type.")
@click.option("--yes", is_flag=True, help="Do not ask before dedup is turned off.")
@store_option
@json_option
def set_window(
    *, group: str, length: str, kind: str | None, yes: bool, store: str | None, as_json: bool
) -> None:
    """Set the window of GROUP.

    To 24h, 1h30m, a preset (payment, order, notification, analytics), or to "none", which is no dedup at
    all: every delivery takes effect.
    """
    name, kind = check_name("group", group), optional_name("type", kind)
    seconds = None if length == _NONE else window_seconds(length, name="WINDOW")
    with opened(store) as found:
        _hint_at_known_groups(found, name)
        if seconds is None:
            confirm(f"Turn dedup off for {_what(name, kind)}?", (), yes=yes)
        found.set_window(name, kind, seconds)
    if as_json:
        as_line({"group": name, "type": kind, "window": seconds})
    else:
        say(f"{_what(name, kind)}: {window(seconds)}; running workers follow within {REFRESH:g} s")


@windows.command("clear")
@click.argument("group", shell_complete=complete_group)
@_type_option("That of this type.")
@store_option
@json_option
def clear_window(*, group: str, kind: str | None, store: str | None, as_json: bool) -> None:
    """Take the window of GROUP back.

    Those in the code count again. Ends with 1 if none was set.
    """
    name, kind = check_name("group", group), optional_name("type", kind)
    with opened(store) as found:
        cleared = found.clear_window(name, kind)
    said = "cleared: those in the code count again" if cleared else "no window was set"
    if as_json:
        as_line({"group": name, "type": kind, "cleared": cleared})
    else:
        say(f"{_what(name, kind)}: {said}")
    sys.exit(Exit.DONE if cleared else Exit.NOTHING)


def _hint_at_known_groups(store: Store, group: str) -> None:
    """A typo would set a window that nobody reads."""
    known = store.groups()
    if known and group not in known:
        say(f"note: the store has no record of {group!r} yet; it has {', '.join(known)}", stderr=True)


def _what(group: str, kind: str | None) -> str:
    return group if kind is None else f"{group}, type {kind}"


def _object(each: StoredWindow) -> dict[str, object]:
    return {
        "group": each.group,
        "type": each.type,
        "window": each.window,
        **both("updated_at", each.updated_at),
    }
