-- The data model of SqliteStore, version 1. Created on first use; checked on every open.
--
-- onceonly_records  one row per record, by 16-byte digest of (group, scope, key). No index on
--                   expires: it would cost every insert more than a sequential scan costs purge.
-- onceonly_groups   group names, so that a row carries a small number instead of a text.
-- onceonly_meta     'schema' is this version; 'fence' is the largest fence of any record that was
--                   deleted. A new fence is larger than that, than the row's own last one and than
--                   the clock in microseconds: so it grows per key, also across expiry and purge,
--                   and a claim need not write a counter.
-- onceonly_windows  windows set at run time, by group and type ('' is the whole group); NULL is no dedup.
--
-- state: 0 claimed, 1 free, 2 processed, 3 failed, 4 quarantined
-- until: end of the lease while claimed, not-before while free
-- expires: when the row is as good as absent; infinite for quarantined
-- Rows written by mark_seen leave everything after expires NULL, but for type and result where given.

CREATE TABLE IF NOT EXISTS onceonly_meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS onceonly_groups (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE IF NOT EXISTS onceonly_records (
    id          BLOB PRIMARY KEY,
    grp         INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    expires     REAL NOT NULL,
    until       REAL,
    token       BLOB,
    fence       INTEGER,
    attempt     INTEGER,
    orphaned    INTEGER,
    done_at     REAL,
    scope       TEXT,
    key         TEXT,
    type        TEXT,
    fingerprint BLOB,
    result      BLOB
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS onceonly_windows (
    grp     TEXT NOT NULL,
    type    TEXT NOT NULL,
    window  REAL,
    updated REAL NOT NULL,
    PRIMARY KEY (grp, type)
) WITHOUT ROWID;

INSERT OR IGNORE INTO onceonly_meta VALUES ('schema', 1), ('fence', 0);
