"""``onceonly stats``: how many records of each group are in which state."""

from __future__ import annotations

import click

from onceonly.cli.common import Command, among, group_option, json_option, opened, store_option
from onceonly.cli.operate.shown import as_line, say, table
from onceonly.cli.operate.wording import window
from onceonly.protocols import Store
from onceonly.types import ReadWindows, State, Stats, StoredWindow


@click.command(cls=Command)
@store_option
@group_option
@json_option
def stats(*, store: str | None, group: str | None, as_json: bool) -> None:
    """Count records by group and state.

    Claimed is in flight or orphaned, free is waiting: `onceonly claims` tells which. It reads the whole
    store, beside the traffic.
    """
    with opened(store) as found:
        counted, windows = found.stats(), _windows(found, group)
        where = among(found, group)
    groups = {name: counted.groups[name] for name in sorted(counted.groups) if group in (None, name)}
    shown = Stats(groups, 0 if group else counted.expired)  # what has expired is counted for all groups
    if as_json:
        as_line(_object(shown, windows))
    else:
        _show(shown, windows, where)


def _windows(store: Store, group: str | None) -> dict[str, StoredWindow]:
    (stored,) = store.windows([ReadWindows(group)])
    return {each.group: each for each in stored if each.type is None}


def _object(stats: Stats, windows: dict[str, StoredWindow]) -> dict[str, object]:
    return {
        "records": stats.records,
        "expired": stats.expired,
        "groups": {
            name: {state.value: states.get(state, 0) for state in State}
            for name, states in stats.groups.items()
        },
        "windows": {name: each.window for name, each in windows.items()},
    }


def _show(stats: Stats, windows: dict[str, StoredWindow], where: str) -> None:
    states = [state.value for state in State]
    rows = [
        (
            name,
            *(f"{counts.get(state, 0):,}" for state in State),
            window(windows[name].window) if name in windows else "",
        )
        for name, counts in stats.groups.items()
    ]
    if rows:
        table(("group", *states, "window set"), rows, numbers=states)
    expired = f"; {stats.expired:,} expired, until `onceonly purge`" if stats.expired else ""
    say(f"{stats.records:,} records{where}{expired}")
