"""What each verb does inside one SQLite transaction, whoever opened it: the store or the caller.

The decisions are in ``rules.py``; here are only the statements that load and keep a record. Batches
are walked in the order of their digests, so that each page of the table is visited once.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from onceonly.errors import InFlight, LeaseLost
from onceonly.stores.rules import FOREVER, FORGET_HINT, MARK_HINT, REVOKE_HINT, Entry, Rules, refuse_live
from onceonly.types import (
    EVERY_STATE,
    Acquired,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Done,
    Mark,
    Marks,
    Query,
    ReadWindows,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Stats,
    Status,
    StoredWindow,
    digest_prefix,
)

_STATES = (State.CLAIMED, State.FREE, State.PROCESSED, State.FAILED, State.QUARANTINED)
_CODES = {state: code for code, state in enumerate(_STATES)}
_PROCESSED = _CODES[State.PROCESSED]
_QUARANTINED = Status.QUARANTINED
_DONE_CODES = {status: _CODES[State(status.value)] for status in Status}

_LOAD = """
SELECT state, token, expires, until, fence, attempt, orphaned, done_at,
       CAST(type AS BLOB), fingerprint, result
FROM onceonly_records WHERE id = ?"""

# No index serves it: an operator may wait a moment, every message could not.
_FIND = """
SELECT CAST(g.name AS BLOB), CAST(scope AS BLOB), CAST(key AS BLOB),
       state, token, expires, until, fence, attempt, orphaned, done_at,
       CAST(type AS BLOB), fingerprint, result
FROM onceonly_records JOIN onceonly_groups g ON g.id = grp
WHERE fence > 0 AND expires > ?1 AND (?2 IS NULL OR g.name = ?2) AND state IN (?5, ?6, ?7, ?8, ?9)
      AND (?3 IS NULL OR state != 0 OR (until <= ?1) = ?3)
ORDER BY fence LIMIT ?4"""

_KEEP = """
INSERT INTO onceonly_records (id, grp, state, expires, until, token, fence, attempt, orphaned,
                              done_at, scope, key, type, fingerprint, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, expires = excluded.expires, until = excluded.until,
    token = excluded.token, fence = excluded.fence, attempt = excluded.attempt,
    orphaned = excluded.orphaned, done_at = excluded.done_at, scope = excluded.scope,
    key = excluded.key, type = excluded.type, fingerprint = excluded.fingerprint,
    result = excluded.result"""

_MARK = """
INSERT INTO onceonly_records (id, grp, state, expires, type, result) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING"""

# The usual cases in one statement each: a key never seen, and a claim that is ours. Whatever they do
# not change is loaded and judged by the rules.
_CLAIM_NEW = """
INSERT INTO onceonly_records (id, grp, state, expires, until, token, fence, attempt, orphaned,
                              scope, key, type, fingerprint)
SELECT ?1, ?2, 0, ?3, ?4, ?5, ?6, 1, 0, ?7, ?8, ?9, ?10
WHERE (SELECT value FROM onceonly_meta WHERE name = 'fence') < ?6
ON CONFLICT (id) DO NOTHING"""

_COMPLETE_OURS = """
UPDATE onceonly_records SET state = ?, expires = ?, done_at = ?, result = ?
WHERE id = ? AND token = ? AND state = 0 AND expires > ?"""

_FENCE_FLOOR = "SELECT value FROM onceonly_meta WHERE name = 'fence'"
_RAISE_FLOOR = "UPDATE onceonly_meta SET value = max(value, ?) WHERE name = 'fence'"

_DONE = "SELECT 1 FROM onceonly_records WHERE id = ? AND state > 1 AND expires > ?"
_LIVE = "SELECT until FROM onceonly_records WHERE id = ? AND state = 0 AND until > ?"


class HasId(Protocol):
    """Any request."""

    @property
    def id(self) -> RecordId: ...


R = TypeVar("R", bound=HasId)
T = TypeVar("T")


class Plans:
    """The verbs on one cursor, in one transaction, at one time."""

    def __init__(self, cursor: sqlite3.Cursor, now: float, groups: Mapping[str, int], rules: Rules) -> None:
        self._cursor = cursor
        self._now = now
        self._groups = groups
        self._rules = rules
        self._row_fence = 0  # of the row loaded last, also if it is expired
        self.learned: dict[str, int] = {}  # to be remembered only if this transaction commits

    def mark_seen(self, marks: Sequence[Mark], *, refuse_live_claims: bool = False) -> list[bool]:
        digests = digests_of(marks)
        order = in_order(digests)
        if isinstance(marks, Marks) and marks.type is None:
            columns = [map(digests.__getitem__, order)]
            if marks.results is not None:
                columns.append(map(marks.results.__getitem__, order))
            new = self._changed(self._mark_alike(marks), zip(*columns, strict=True), order)
        else:
            new = self._changed(_MARK, self._new_rows(marks, digests, order), order)
        if not all(new):
            known = [index for index in order if not new[index]]
            free = self._not_seen(known, digests)
            if refuse_live_claims and free:
                self._refuse_live_marks(marks, digests, new, free)
            for index in free:
                new[index] = self._mark_known(digests[index], marks[index])
        return new

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        digests = digests_of(requests)
        order = in_order(digests)
        first = clock_fence(self._now)
        fences = range(first, first + len(requests))
        rows = [
            claim_row(request, digest, self._now, fence, self._group(request.id.group))
            for request, digest, fence in zip(requests, digests, fences, strict=True)
        ]
        new = self._changed(_CLAIM_NEW, map(rows.__getitem__, order), order)
        answers: list[ClaimAnswer] = [
            Acquired(fence, 1, fingerprint=request.fingerprint)
            for request, fence in zip(requests, fences, strict=True)
        ]
        if not all(new):
            for index in order:
                if not new[index]:
                    answers[index] = self._claim_known(digests[index], requests[index])
        return answers

    def done(self, request: ClaimRequest) -> Done | None:
        """The answer to a claim of what is done, which needs no write; None: it is not."""
        entry = self._load(digest_of(request.id))
        return self._rules.done(entry) if entry is not None and entry.state.done else None

    def complete(self, completions: Sequence[Completion], *, refuse_lost: bool = False) -> list[bool]:
        if refuse_lost:
            self._refuse_lost(completions)
        digests = digests_of(completions)
        rows = [done_row(c, digest, self._now) for c, digest in zip(completions, digests, strict=True)]
        order = in_order(digests)
        done = self._changed(_COMPLETE_OURS, map(rows.__getitem__, order), order)
        if not all(done):
            for index, completion in enumerate(completions):
                if not done[index]:
                    done[index] = self._complete_known(digests[index], completion)
        return done

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._change(releases, self._rules.release)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return self._change(renewals, self._rules.renew)

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        digests = digests_of([Mark(record_id, 0.0) for record_id in ids])
        found: list[Record | None] = [None] * len(ids)
        for index in in_order(digests):
            entry = self._load(digests[index])
            if entry is not None:
                found[index] = entry.snapshot(ids[index], self._now)
        return found

    def forget(self, ids: Sequence[RecordId], *, force: bool, only: Collection[State]) -> list[bool]:
        answers = []
        for digest, chosen in self._not_live(ids, FORGET_HINT, force=force, only=only):
            if chosen is None and self._load(digest) is not None:
                answers.append(False)
                continue
            deleted = self._delete("DELETE FROM onceonly_records WHERE id = ?", [(digest,)])
            answers.append(chosen is not None and deleted == 1)  # an expired one goes as well, untold
        return answers

    def revoke(self, shown: Sequence[Record], *, force: bool, afresh: bool) -> list[bool]:
        rule = self._rules.restart if afresh else self._rules.revoke
        found = self._not_live([record.id for record in shown], REVOKE_HINT, force=force)
        answers = []
        for record, (digest, entry) in zip(shown, found, strict=True):
            still = entry is not None and entry.is_still(record)
            answers.append(still and rule(entry, self._now))
            if answers[-1] and entry is not None:
                self._keep(digest, record.id, entry)
        return answers

    def groups(self) -> list[str]:
        rows = self._cursor.execute("SELECT CAST(name AS BLOB) FROM onceonly_groups ORDER BY name")
        return [name.decode() for (name,) in rows]

    def find(self, query: Query) -> list[Record]:
        states = [_CODES[state] if state in query.states else None for state in _STATES]
        rows = self._cursor.execute(_FIND, (self._now, query.group, query.orphaned, query.limit, *states))
        return [
            _entry(row[3:]).snapshot(RecordId(*(text.decode() for text in row[:3])), self._now)
            for row in rows
        ]

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        found = {group: self._windows_of(group) for group in {request.group for request in requests}}
        return [found[request.group] for request in requests]

    def set_window(self, chosen: tuple[str, str | None, float | None]) -> None:
        group, kind, window = chosen
        row = (group, kind or "", window, self._now)
        self._cursor.execute("INSERT OR REPLACE INTO onceonly_windows VALUES (?, ?, ?, ?)", row)

    def clear_window(self, chosen: tuple[str, str | None]) -> bool:
        group, kind = chosen
        statement = "DELETE FROM onceonly_windows WHERE grp = ? AND type = ?"
        return self._cursor.execute(statement, (group, kind or "")).rowcount == 1

    def delete_expired(self, digests: Sequence[bytes]) -> int:
        """Those that are still expired; a claim may have taken one over since it was found."""
        still = "DELETE FROM onceonly_records WHERE id = ? AND expires <= ?"
        return self._delete(still, [(digest, self._now) for digest in digests])

    def stats(self) -> Stats:
        rows = self._cursor.execute(
            "SELECT g.name, r.state, r.expires <= ?, count(*) FROM onceonly_records r "
            "JOIN onceonly_groups g ON g.id = r.grp GROUP BY 1, 2, 3",
            (self._now,),
        )
        groups: dict[str, dict[State, int]] = defaultdict(dict)
        expired = 0
        for name, code, is_expired, count in rows:
            if is_expired:
                expired += count
            else:
                groups[name][_STATES[code]] = count
        return Stats(groups=dict(groups), expired=expired)

    @staticmethod
    def scan_expired(connection: sqlite3.Connection, now: float, after: bytes, limit: int) -> list[bytes]:
        """Digests of expired rows in key order; reads only, so it holds up no writer."""
        rows = connection.execute(
            "SELECT id FROM onceonly_records WHERE id > ? AND expires <= ? ORDER BY id LIMIT ?",
            (after, now, limit),
        )
        return [row[0] for row in rows]

    # --- records ------------------------------------------------------------------------------

    def _changed(
        self, statement: str, rows: Iterable[tuple[object, ...]], order: Sequence[int]
    ) -> list[bool]:
        """Execute for all rows; which of them changed the table? ``order`` says whose rows they are."""
        changed = [False] * len(order)

        def in_turn() -> Iterator[tuple[object, ...]]:
            # executemany asks for the next row once the last one is executed, so the counter tells
            # right here what came of that one.
            connection = self._cursor.connection
            before = connection.total_changes
            for index, row in zip(order, rows, strict=True):
                yield row
                after = connection.total_changes
                if after != before:
                    before = after
                    changed[index] = True

        self._cursor.executemany(statement, in_turn())
        return changed

    def _claim_known(self, digest: bytes, request: ClaimRequest) -> ClaimAnswer:
        answer, kept = self._rules.claim(self._load(digest), request, self._now, self._mint)
        if kept is not None:
            self._keep(digest, request.id, kept)
        return answer

    def _complete_known(self, digest: bytes, completion: Completion) -> bool:
        return self._rules.complete(self._load(digest), completion, self._now)

    def _delete(self, statement: str, rows: Sequence[tuple[object, ...]]) -> int:
        """Delete, and remember the largest fence that goes, so that fences keep growing."""
        highest = deleted = 0
        for row in rows:
            gone = self._cursor.execute(f"{statement} RETURNING coalesce(fence, 0)", row).fetchone()
            if gone is not None:
                deleted += 1
                highest = max(highest, gone[0])
        if highest:
            self._cursor.execute(_RAISE_FLOOR, (highest,))
        return deleted

    def _load(self, digest: bytes) -> Entry | None:
        row = self._cursor.execute(_LOAD, (digest,)).fetchone()
        self._row_fence = (row and row[4]) or 0
        return None if row is None or row[2] <= self._now else _entry(row)

    def _keep(self, digest: bytes, record_id: RecordId, entry: Entry) -> None:
        values = (
            digest,
            self._group(record_id.group),
            _CODES[entry.state],
            entry.expires,
            entry.until,
            entry.token,
            entry.fence,
            entry.attempt,
            entry.orphaned,
            entry.done_at,
            record_id.scope,
            record_id.key,
            entry.type,
            entry.fingerprint,
            entry.result,
        )
        self._cursor.execute(_KEEP, values)

    def _change(self, requests: Sequence[R], rule: Callable[[Entry | None, R, float], bool]) -> list[bool]:
        digests = digests_of(requests)
        answers = [False] * len(requests)
        for index in in_order(digests):
            entry, request = self._load(digests[index]), requests[index]
            if rule(entry, request, self._now) and entry is not None:
                self._keep(digests[index], request.id, entry)
                answers[index] = True
        return answers

    def _mint(self) -> int:
        """Larger than every earlier fence of the row loaded last, and of rows that were deleted."""
        floor: int = self._cursor.execute(_FENCE_FLOOR).fetchone()[0]
        return max(clock_fence(self._now), self._row_fence + 1, floor + 1)

    def _group(self, name: str) -> int:
        number = self._groups.get(name) or self.learned.get(name)
        if number is None:
            self._cursor.execute("INSERT OR IGNORE INTO onceonly_groups (name) VALUES (?)", (name,))
            row = self._cursor.execute("SELECT id FROM onceonly_groups WHERE name = ?", (name,))
            number = self.learned[name] = row.fetchone()[0]
        return number

    # --- marks --------------------------------------------------------------------------------

    def _mark_alike(self, marks: Marks) -> str:
        """The statement for marks that differ in their digest only: the rest is bound once, not per row."""
        group, expires = self._group(marks.group), self._now + marks.window
        result = "NULL" if marks.results is None else "?"
        alike = f"?, {group:d}, {_PROCESSED}, {expires!r}, NULL, {result}"
        return _MARK.replace("?, ?, ?, ?, ?, ?", alike)

    def _new_rows(
        self, marks: Sequence[Mark], digests: list[bytes], order: Sequence[int]
    ) -> list[tuple[object, ...]]:
        now = self._now
        chosen = [(digests[index], marks[index]) for index in order]
        return [(d, self._group(m.id.group), _PROCESSED, now + m.window, m.type, m.result) for d, m in chosen]

    def _not_seen(self, known: Sequence[int], digests: Sequence[bytes]) -> list[int]:
        """Those that are not done: expired, free or claimed. The usual case in one short look."""
        execute, now = self._cursor.execute, self._now
        return [i for i in known if execute(_DONE, (digests[i], now)).fetchone() is None]

    def _refuse_live_marks(
        self, marks: Sequence[Mark], digests: Sequence[bytes], new: Sequence[bool], known: Sequence[int]
    ) -> None:
        """Refused is the whole batch: what was marked a moment ago is taken back."""
        try:
            self._refuse_live([marks[i] for i in known], [digests[i] for i in known])
        except InFlight:
            inserted = [(digest,) for digest, is_new in zip(digests, new, strict=True) if is_new]
            self._cursor.executemany("DELETE FROM onceonly_records WHERE id = ?", inserted)
            raise

    def _mark_known(self, digest: bytes, mark: Mark) -> bool:
        kept = self._rules.mark(self._load(digest), mark, self._now)
        if kept is not None:
            if kept.fence < self._row_fence:  # of a claim that is expired: this record never had it
                self._cursor.execute(_RAISE_FLOOR, (self._row_fence,))
            self._keep(digest, mark.id, kept)
        return kept is not None

    def _windows_of(self, group: str | None) -> list[StoredWindow]:
        rows = self._cursor.execute(
            "SELECT CAST(grp AS BLOB), CAST(type AS BLOB), window, updated FROM onceonly_windows "
            "WHERE ?1 IS NULL OR grp = ?1 ORDER BY grp, type",
            (group,),
        )
        return [
            StoredWindow(g.decode(), t.decode() or None, window, updated) for g, t, window, updated in rows
        ]

    def _not_live(
        self,
        ids: Sequence[RecordId],
        hint: str,
        *,
        force: bool,
        only: Collection[State] = EVERY_STATE,
    ) -> list[tuple[bytes, Entry | None]]:
        """The records in these states, unless one of them is a live claim."""
        found = []
        for record_id, digest in zip(ids, digests_of([Mark(i, 0.0) for i in ids]), strict=True):
            entry = self._load(digest)
            chosen = entry if entry is not None and entry.state in only else None
            if not force and chosen is not None and self._rules.live(chosen, self._now):
                refuse_live(record_id, chosen.until - self._now, hint)
            found.append((digest, chosen))
        return found

    def _refuse_live(self, marks: Sequence[Mark], digests: list[bytes]) -> None:
        for mark, digest in zip(marks, digests, strict=True):
            row = self._cursor.execute(_LIVE, (digest, self._now)).fetchone()
            if row is not None:
                refuse_live(mark.id, row[0] - self._now, MARK_HINT)

    def _refuse_lost(self, completions: Sequence[Completion]) -> None:
        """Before anything is written. What is loaded is a copy, so the rule may change it here."""
        for completion, digest in zip(completions, digests_of(completions), strict=True):
            if not self._rules.complete(self._load(digest), completion, self._now):
                msg = f"the claim on {completion.id.key!r} is no longer ours: roll back"
                raise LeaseLost(msg)


def _entry(row: tuple[Any, ...]) -> Entry:
    state, token, expires, until, fence, attempt, orphaned, done_at, kind, fingerprint, result = row
    entry = Entry(_STATES[state], token, expires)
    entry.until = until or 0.0
    entry.fence = fence or 0
    entry.attempt = attempt or 0
    entry.orphaned = bool(orphaned)
    entry.done_at = done_at
    entry.type = kind and kind.decode()  # loaded as a BLOB: a caller may have a text_factory
    entry.fingerprint = fingerprint
    entry.result = result
    return entry


# --- one statement as a transaction of its own ------------------------------------------------


def claim_new(
    cursor: sqlite3.Cursor, request: ClaimRequest, now: float, groups: Mapping[str, int]
) -> Acquired | None:
    """Claim a key that was never seen. None: nothing changed, decide by the rules."""
    number = groups.get(request.id.group)
    if number is None:
        return None
    fence = clock_fence(now)
    cursor.execute(_CLAIM_NEW, claim_row(request, digest_of(request.id), now, fence, number))
    return Acquired(fence, 1, fingerprint=request.fingerprint) if cursor.rowcount == 1 else None


def complete_ours(
    cursor: sqlite3.Cursor, completion: Completion, now: float, _groups: Mapping[str, int]
) -> bool | None:
    """Complete a claim that is ours. None: nothing changed, decide by the rules."""
    cursor.execute(_COMPLETE_OURS, done_row(completion, digest_of(completion.id), now))
    return True if cursor.rowcount == 1 else None


def claim_row(request: ClaimRequest, digest: bytes, now: float, fence: int, group: int) -> tuple[object, ...]:
    (_, scope, key), token, lease, window, fingerprint, kind = request
    until = now + lease
    return (digest, group, until + window, until, token, fence, scope, key, kind, fingerprint)


def done_row(completion: Completion, digest: bytes, now: float) -> tuple[object, ...]:
    _, token, window, status, result = completion
    expires = FOREVER if status is _QUARANTINED else now + window
    return (_DONE_CODES[status], expires, now, result, digest, token, now)


def clock_fence(now: float) -> int:
    return int(now * 1e6)


# --- digests ----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _hasher(group: str, scope: str) -> blake2b:
    return blake2b(digest_prefix(group, scope), digest_size=16)


def digest_of(record_id: RecordId) -> bytes:
    group, scope, key = record_id
    hasher = _hasher(group, scope).copy()
    hasher.update(key.encode())
    return hasher.digest()


def digests_of(requests: Sequence[HasId]) -> list[bytes]:
    """One digest per request; the hash of group and scope is shared."""
    digests = []
    if isinstance(requests, Marks):
        copy = _hasher(requests.group, requests.scope).copy
        for key in requests.keys:
            hasher = copy()
            hasher.update(key.encode())
            digests.append(hasher.digest())
        return digests
    known_group = known_scope = None
    for request in requests:
        group, scope, key = request.id
        if group is not known_group or scope is not known_scope:
            known_group, known_scope = group, scope
            copy = _hasher(group, scope).copy
        hasher = copy()
        hasher.update(key.encode())
        digests.append(hasher.digest())
    return digests


def in_order(digests: Sequence[bytes]) -> Sequence[int]:
    """Indexes by digest: rows next to each other are changed one after the other, and two batches
    meet their common rows in the same order."""
    return range(1) if len(digests) == 1 else sorted(range(len(digests)), key=digests.__getitem__)
