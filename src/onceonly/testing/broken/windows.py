"""Stores broken where windows are set: for whom, for what, in which order, and what follows."""

# ruff: noqa: A002, ARG002 - the verbs' argument is called type; and often it is what is ignored
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onceonly.stores.memory import MemoryStore
from onceonly.types import ReadWindows, StoredWindow


class UnsetWindowIsNoDedup(MemoryStore):
    """Where no window was set, no dedup is told."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        answers = super().windows(requests)
        return [
            told or [StoredWindow(request.group or "", None, None, 0.0)]
            for request, told in zip(requests, answers, strict=True)
        ]


class WindowsAreWholeSeconds(MemoryStore):
    """Parts of a second are dropped."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        super().set_window(group, type, None if window is None else float(int(window)))


class WindowsLoseTheirGroup(MemoryStore):
    """All windows are told under one name."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return [[replace(each, group="") for each in told] for told in super().windows(requests)]


class WindowsOfAllGroups(MemoryStore):
    """Each group is told every group's windows."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return super().windows([ReadWindows() for _ in requests])


class ClearIgnoresGroup(MemoryStore):
    """A window is cleared in all groups at once."""

    def clear_window(self, group: str, type: str | None) -> bool:
        groups = {each for each, kind in self._windows if kind == type}
        cleared = [super(ClearIgnoresGroup, self).clear_window(each, type) for each in groups]
        return any(cleared)


class WindowIgnoresType(MemoryStore):
    """A window for one type counts for the whole group."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        super().set_window(group, None, window)


class ClearTakesTypes(MemoryStore):
    """To clear the window of a group clears those of its types."""

    def clear_window(self, group: str, type: str | None) -> bool:
        kinds = [kind for name, kind in self._windows if name == group] if type is None else [type]
        cleared = [super(ClearTakesTypes, self).clear_window(group, kind) for kind in kinds]
        return any(cleared)


class NoDedupIsAbsent(MemoryStore):
    """To set no dedup clears the window."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        if window is None:
            self.clear_window(group, type)
        else:
            super().set_window(group, type, window)


class NoDedupIsNothing(MemoryStore):
    """No dedup is kept as a window of 0 seconds."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        super().set_window(group, type, window or 0.0)


class FirstWindowStays(MemoryStore):
    """A window that is set cannot be changed."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        if (group, type) not in self._windows:
            super().set_window(group, type, window)


class LongestWindowStays(MemoryStore):
    """A window can be made longer, never shorter, and no dedup cannot be taken back."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        known = self._windows.get((group, type))
        if known is None or window is None or (known.window is not None and window > known.window):
            super().set_window(group, type, window)


class ClearAlwaysTrue(MemoryStore):
    """Tells everybody that a window was cleared."""

    def clear_window(self, group: str, type: str | None) -> bool:
        super().clear_window(group, type)
        return True


class ClearDoesNothing(MemoryStore):
    """Says whether there is a window, and keeps it."""

    def clear_window(self, group: str, type: str | None) -> bool:
        return (group, type) in self._windows


class WindowsInOrderOfSetting(MemoryStore):
    """Windows come as they were set."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        known = self._windows.values()
        return [[each for each in known if request.group in (None, each.group)] for request in requests]


class WholeGroupComesLast(MemoryStore):
    """The window of a group comes after those of its types."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        answers = super().windows(requests)
        return [sorted(told, key=lambda each: (each.group, each.type is None)) for told in answers]


class WindowsInOrderOfGroups(MemoryStore):
    """Requests are sorted, and so are their answers, one for each group."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return super().windows(sorted(set(requests), key=repr))


class WindowNamesAreJoined(MemoryStore):
    """Group and type make one name, joined by a colon."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        known = list(self._windows.values())
        return [
            [each for each in known if f"{each.group}:{each.type}".startswith(f"{request.group}:")]
            for request in requests
        ]


class WindowTypesAreFolded(MemoryStore):
    """Types are stripped and compared without case."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        super().set_window(group, type and type.strip().casefold(), window)


class WindowIsDatedOnce(MemoryStore):
    """A window that is replaced keeps the date of the first one."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        known = self._windows.get((group, type))
        super().set_window(group, type, window)
        if known is not None:
            self._windows[group, type] = replace(known, window=window)


class WindowHasNoDate(MemoryStore):
    """Nobody can tell when a window was set."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return [[replace(each, updated_at=0.0) for each in told] for told in super().windows(requests)]


class WindowChangesRecords(MemoryStore):
    """A shorter window forgets what is done already."""

    def set_window(self, group: str, type: str | None, window: float | None) -> None:
        super().set_window(group, type, window)
        for record_id, entry in self._entries.items():
            if record_id.group == group and entry.state.done:
                entry.expires = min(entry.expires, self._clock() + (window or 0.0))


class PurgeTakesWindows(MemoryStore):
    """Cleanup takes the windows of groups that have no records."""

    def purge(self, *, limit: int = 10_000) -> int:
        removed = super().purge(limit=limit)
        groups = {record_id.group for record_id in self._entries}
        for group, kind in list(self._windows):
            if group not in groups:
                self.clear_window(group, kind)
        return removed


class WindowsExpire(MemoryStore):
    """A window is over after as long as it says."""

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        now = self._clock()
        return [
            [each for each in told if each.window is None or now < each.updated_at + each.window]
            for told in super().windows(requests)
        ]
