"""Stores broken where they are bound to the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from onceonly.errors import LeaseLost
from onceonly.stores.sqlite import BoundSqliteStore, SqliteStore
from onceonly.types import (
    Acquired,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    ReadWindows,
    Release,
    StoredWindow,
)


class _Unbound(BoundSqliteStore):
    """Bound in name only: each call commits by itself."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._store.mark_seen(marks)

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._store.claim(requests)

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._store.complete(completions)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._store.release(releases)

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._store.windows(requests)


class BindDoesNotBind(SqliteStore):
    """A bound store writes through the store's own connection."""

    def bind(self, connection: object) -> BoundSqliteStore:
        super().bind(connection)
        return _Unbound(self)


class _Wrapped(SqliteStore):
    """Binds to a broken bound store."""

    bound: type[BoundSqliteStore]

    def bind(self, connection: object) -> BoundSqliteStore:
        return self.bound(connection, self._path, self._clock, self._rules)


class BoundMarkOfLiveIsSeen(_Wrapped):
    """A bound mark of a live claim says "seen", and its message is lost if the first run fails."""

    class bound(BoundSqliteStore):  # noqa: N801 - it stands for an attribute
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            return self._run(lambda plans: plans.mark_seen(marks))


class BoundMarkStopsHalfWay(_Wrapped):
    """A bound mark of a live claim raises after it marked the others."""

    class bound(BoundSqliteStore):  # noqa: N801
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            return [super(BoundMarkStopsHalfWay.bound, self).mark_seen([mark])[0] for mark in marks]


class BoundMarkIsAlwaysNew(_Wrapped):
    """A bound mark never finds anything."""

    class bound(BoundSqliteStore):  # noqa: N801
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            super().mark_seen(marks)
            return [True] * len(marks)


class BoundMarkIsNeverNew(_Wrapped):
    """A bound mark tells everything as seen."""

    class bound(BoundSqliteStore):  # noqa: N801
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            return [False] * len(marks)


class BoundMarkForgetsResult(_Wrapped):
    """A bound mark keeps no result."""

    class bound(BoundSqliteStore):  # noqa: N801
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            return super().mark_seen([mark._replace(result=None) for mark in marks])


class BoundCommits(_Wrapped):
    """A bound store commits the caller's transaction."""

    class bound(BoundSqliteStore):  # noqa: N801
        def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
            answers = super().mark_seen(marks)
            self._connection.commit()
            return answers

        def complete(self, completions: Sequence[Completion]) -> list[bool]:
            answers = super().complete(completions)
            self._connection.commit()
            return answers


class BoundCompleteSaysFalse(_Wrapped):
    """A stale bound completion is told False, so its work is committed."""

    class bound(BoundSqliteStore):  # noqa: N801
        def complete(self, completions: Sequence[Completion]) -> list[bool]:
            return self._run(lambda plans: plans.complete(completions))


class BoundCompleteStopsHalfWay(_Wrapped):
    """A stale bound completion raises after it completed the others."""

    class bound(BoundSqliteStore):  # noqa: N801
        def complete(self, completions: Sequence[Completion]) -> list[bool]:
            answers = self._run(lambda plans: plans.complete(completions))
            if not all(answers):
                msg = "one of them is lost"
                raise LeaseLost(msg)
            return answers


class BoundClaimIgnoresLive(_Wrapped):
    """A bound claim does not mind that another runs."""

    class bound(BoundSqliteStore):  # noqa: N801
        def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
            answers = super().claim(requests)
            return [Acquired(1, 1) if isinstance(answer, Busy) else answer for answer in answers]


class BoundResultIsLost(_Wrapped):
    """A bound completion keeps no result."""

    class bound(BoundSqliteStore):  # noqa: N801
        def complete(self, completions: Sequence[Completion]) -> list[bool]:
            return super().complete([c._replace(result=None) for c in completions])


class BoundReleaseDoesNothing(_Wrapped):
    """A bound release says True and keeps the claim."""

    class bound(BoundSqliteStore):  # noqa: N801
        def release(self, releases: Sequence[Release]) -> list[bool]:
            return [True] * len(releases)


class BoundKnowsNoWindows(_Wrapped):
    """A bound store tells no windows, so that the inbox follows none."""

    class bound(BoundSqliteStore):  # noqa: N801
        def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
            return [[] for _ in requests]


class BindTakesAnything(SqliteStore):
    """Bind to any object gives a store that is not bound."""

    def bind(self, connection: object) -> BoundSqliteStore:
        return super().bind(connection) if hasattr(connection, "cursor") else _Unbound(self)
