"""The operator's commands: in a pipe, on a terminal, and while workers are at it."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from onceonly import Once, State
from onceonly.cli.main import command
from onceonly.cli.operate import acting
from onceonly.cli.operate.wording import duration, iso, relative
from onceonly.stores.sqlite import SqliteStore
from onceonly.types import ClaimRequest, Completion, Mark, ReadWindows, RecordId, Release, Status
from tests.commands import ONCEONLY, environment, run, run_on_terminal, started

HOUR = 3600.0
ESCAPE = "evil\x1b[31m\nkey"

Cli = Callable[..., Result]


def rid(key: str, group: str = "billing", scope: str = "") -> RecordId:
    return RecordId(group, scope, key)


def claim(
    store: SqliteStore, key: str, *, lease: float = HOUR, group: str = "billing", scope: str = ""
) -> None:
    store.claim([ClaimRequest(rid(key, group, scope), b"t", lease, HOUR, type="order.paid")])


def done(store: SqliteStore, key: str, status: Status, result: bytes | None = None) -> None:
    claim(store, key)
    assert store.complete([Completion(rid(key), b"t", HOUR, status, result)]) == [True]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """One record in each condition, claimed in this order."""
    store = SqliteStore(tmp_path / "store.db")
    claim(store, "orphan", lease=0.001)
    claim(store, "live")
    claim(store, "waiting")
    store.release([Release(rid("waiting"), b"t", HOUR, HOUR)])
    done(store, "processed", Status.PROCESSED, b'{"cents": 4000}')
    done(store, "failed", Status.FAILED, b'["ValueError", "no"]')
    done(store, "quarantined", Status.QUARANTINED)
    store.mark_seen([Mark(rid("marked"), HOUR), Mark(rid("marked", "mail"), HOUR)])
    time.sleep(0.002)
    yield store
    store.close()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in list(os.environ):
        if name.startswith("ONCEONLY_"):
            monkeypatch.delenv(name)

    def invoke(*options: str, text: str | None = None, store: str | None = "store.db", **env: str) -> Result:
        place = {} if store is None else {"ONCEONLY_STORE": f"sqlite:///{tmp_path / store}"}
        return CliRunner(env={**place, **env}).invoke(command, options, input=text, prog_name="onceonly")

    return invoke


def ours(cli: Cli, *options: str, **more: str) -> Result:
    return cli(*options, "--group", "billing", **more)


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def state(store: SqliteStore, key: str) -> State | None:
    (record,) = store.peek([rid(key)])
    return record.state if record else None


def everything(path: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT * FROM onceonly_records ORDER BY id").fetchall()
    connection.close()
    return found


# --- stats ------------------------------------------------------------------------------------


def test_stats_count_by_group_and_state(cli, store):
    store.set_window("billing", None, 7200.0)
    store.set_window("billing", "click", 60.0)
    header, billing, mail, total = cli("stats").stdout.splitlines()
    assert " ".join(header.split()) == "group claimed free processed failed quarantined window set"
    assert " ".join(billing.split()) == "billing 2 1 2 1 1 2h"
    assert " ".join(mail.split()) == "mail 0 0 1 0 0"
    assert total == "8 records"
    (found,) = lines(cli("stats", "--json", "--group", "billing"))
    assert found == {
        "records": 7,
        "expired": 0,
        "groups": {"billing": {"claimed": 2, "free": 1, "processed": 2, "failed": 1, "quarantined": 1}},
        "windows": {"billing": 7200.0},
    }


def test_stats_say_what_waits_for_a_purge(cli, store):
    store.mark_seen([Mark(rid(f"old-{n}"), 0.001) for n in range(1200)])
    time.sleep(0.002)
    assert cli("stats").stdout.splitlines()[-1] == "8 records; 1,200 expired, until `onceonly purge`"


def test_stats_of_an_empty_store_and_of_an_unknown_group_are_no_error(cli, tmp_path):
    SqliteStore(tmp_path / "store.db").close()
    assert cli("stats").stdout == "0 records\n"
    result = cli("stats", "--group", "nobody")
    assert (result.exit_code, result.stdout.partition(",")[0]) == (0, "0 records in group 'nobody'")


@pytest.mark.parametrize(
    "options",
    [
        ("stats",),
        ("claims",),
        ("claims", "--state", "quarantined"),
        ("claims", "rerun", "--all", "quarantined", "--yes"),
        ("windows",),
    ],
    ids=" ".join,
)
def test_a_typo_in_the_group_is_no_good_news(options, cli, store):
    result = cli(*options, "--group", "biling")
    assert (
        "in group 'biling', and no record of that group at all; the store has billing, mail" in result.output
    )


def test_nothing_of_a_scope_is_said_as_such(cli, store):
    result = ours(cli, "claims", "rerun", "--all", "quarantined", "--scope", "acm", "--yes")
    assert (result.exit_code, result.stderr) == (
        1,
        "nothing is quarantined with scope 'acm' in group 'billing'\n",
    )


# --- peek -------------------------------------------------------------------------------------


def test_peek_shows_a_record_in_words_and_not_its_result(cli, store):
    shown = ours(cli, "peek", "processed", "nobody")
    fields = dict(line.split(maxsplit=1) for line in shown.stdout.split("\n\n")[0].splitlines())
    assert shown.exit_code == 0
    assert (fields["state"], fields["attempt"], fields["type"]) == ("processed", "1", "order.paid")
    assert fields["result"] == "15 bytes"
    assert fields["done"].endswith("(now)")
    assert "remembered until" in shown.stdout
    assert "4000" not in shown.stdout
    assert " ".join(shown.stdout.split("\n\n")[1].split()) == "key nobody group billing state absent"
    assert '{"cents": 4000}' in ours(cli, "peek", "processed", "--result").stdout


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("orphan", {"state": "orphaned", "attempt": 1, "done_at": None, "type": "order.paid"}),
        ("live", {"state": "in-flight", "not_before": None}),
        ("waiting", {"state": "waiting", "lease_until": None}),
        ("failed", {"state": "failed", "result_bytes": 20}),
        ("quarantined", {"state": "quarantined", "expires_at": None, "expires_at_iso": None}),
        ("marked", {"state": "processed", "attempt": 0, "claimed_at": None}),
        ("nobody", {"state": "absent", "group": "billing"}),
    ],
)
def test_peek_for_machines(key, expected, cli, store):
    result = ours(cli, "peek", "--json", key)
    (found,) = lines(result)
    assert {name: found[name] for name in expected} == expected
    assert "result" not in found
    assert result.exit_code == (1 if key == "nobody" else 0)


def test_peek_shows_any_result(cli, store):
    done(store, "binary", Status.PROCESSED, b"\xff\x00")
    done(store, "empty", Status.PROCESSED, b"")
    found = lines(ours(cli, "peek", "--json", "--result", "processed", "binary", "empty", "marked"))
    assert [each.get("result", "-") for each in found] == ['{"cents": 4000}', "-", "", None]
    assert found[1]["result_base64"] == "/wA="


def test_peek_looks_in_the_scope(cli, store):
    claim(store, "k", scope="acme")
    assert ours(cli, "peek", "k").exit_code == 1
    (found,) = lines(ours(cli, "peek", "k", "--scope", "acme", "--json"))
    assert (found["scope"], found["state"]) == ("acme", "in-flight")


def test_what_is_in_a_key_never_steers_the_terminal(cli, store):
    claim(store, ESCAPE, lease=0.001)
    time.sleep(0.002)
    for options in (
        ("peek", ESCAPE),
        ("claims",),
        ("forget", ESCAPE, "--dry-run"),
        ("forget", ESCAPE, "--yes"),
    ):
        shown = ours(cli, *options).stdout
        assert "\x1b" not in shown
        assert r"evil\x1b[31m\nkey" in shown


# --- forget -----------------------------------------------------------------------------------


def test_forget_removes_what_was_named_and_says_so(cli, store):
    result = ours(cli, "forget", "processed", "nobody", "marked", "--yes")
    assert (result.exit_code, result.stderr) == (0, "nobody: no record\n")
    assert result.stdout == "processed: forgotten\nmarked: forgotten\n"
    assert (state(store, "processed"), state(store, "marked")) == (None, None)
    assert store.stats().groups["mail"] == {State.PROCESSED: 1}
    assert ours(cli, "forget", "processed", "--yes").exit_code == 1


def test_forget_for_machines(cli, store):
    found = lines(ours(cli, "forget", "processed", "failed", "--yes", "--json"))
    assert [(each["key"], each["came"]) for each in found] == [("processed", "done"), ("failed", "done")]
    found = lines(ours(cli, "forget", "processed", "marked", "--yes", "--json"))
    assert [(each["key"], each["came"]) for each in found] == [("processed", "left"), ("marked", "done")]
    assert found[0]["state"] == "absent"


@pytest.mark.parametrize(
    "options",
    [
        ("forget", "processed"),
        ("forget", "processed", "--force"),
        ("claims", "release", "orphan"),
        ("claims", "rerun", "quarantined"),
        ("claims", "rerun", "--all", "failed"),
    ],
    ids=" ".join,
)
def test_where_nobody_can_be_asked_nothing_is_changed_without_yes(options, cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    result = ours(cli, *options, text="y\n")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert everything(tmp_path / "store.db") == before


@pytest.mark.parametrize(
    "options",
    [
        ("forget", "processed", "--yes"),
        ("claims", "release", "orphan", "waiting", "--yes"),
        ("claims", "rerun", "quarantined", "failed"),
        ("claims", "rerun", "live", "--force"),
    ],
    ids=" ".join,
)
def test_a_dry_run_changes_nothing(options, cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    result = ours(cli, *options, "--dry-run")
    assert result.exit_code == 0
    assert "would be " in result.stdout
    assert {each["came"] for each in lines(ours(cli, *options, "--dry-run", "--json"))} == {"would"}
    assert everything(tmp_path / "store.db") == before


@pytest.mark.parametrize(
    "options", [("forget",), ("claims", "release"), ("claims", "rerun")], ids=lambda words: words[-1]
)
def test_a_live_claim_is_in_the_way_of_all_unless_forced(options, cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    result = ours(cli, *options, "orphan", "live", "--yes")
    assert result.exit_code == 4
    assert "'live' is in flight" in result.stderr
    assert "--force" in result.stderr
    assert everything(tmp_path / "store.db") == before
    assert ours(cli, *options, "orphan", "live", "--yes", "--force").exit_code == 0
    assert store.complete([Completion(rid("live"), b"t", HOUR)]) == [False]


# --- claims -----------------------------------------------------------------------------------


def test_claims_are_what_is_unfinished_oldest_first(cli, store):
    claim(store, "other", group="mail", scope="acme")
    header, *rows = [line.split() for line in cli("claims").stdout.splitlines()]
    assert " ".join(header) == "key group scope state attempt claimed until type"
    assert [row[0] for row in rows] == ["orphan", "live", "waiting", "quarantined", "other"]
    assert rows[0][:4] == ["orphan", "billing", "orphaned", "1"]
    assert rows[4][:4] == ["other", "mail", "acme", "in-flight"]
    assert [each["key"] for each in lines(ours(cli, "claims", "--json"))] == [row[0] for row in rows[:4]]


@pytest.mark.parametrize(
    ("states", "keys"),
    [
        (["in-flight"], ["live"]),
        (["orphaned"], ["orphan"]),
        (["in-flight", "orphaned"], ["orphan", "live"]),
        (["orphaned", "quarantined"], ["orphan", "quarantined"]),
        (["in-flight", "waiting"], ["live", "waiting"]),
        (["waiting"], ["waiting"]),
        (["failed"], ["failed"]),
    ],
    ids=",".join,
)
def test_claims_of_chosen_states(states, keys, cli, store):
    options = [word for name in states for word in ("--state", name)]
    assert [each["key"] for each in lines(cli("claims", "--json", *options))] == keys


def test_claims_are_limited_and_say_so(cli, store):
    result = cli("claims", "--limit", "2", "--json")
    assert [each["key"] for each in lines(result)] == ["orphan", "live"]
    assert "2 oldest; there are more" in result.stderr
    assert "more" not in cli("claims", "--limit", "4").stderr


def test_no_claims_are_no_error(cli, tmp_path):
    SqliteStore(tmp_path / "store.db").close()
    result = cli("claims")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing is unfinished\n")
    assert cli("claims", "--json").output == ""


def test_a_released_orphan_is_the_next_owners_at_once_and_no_more_the_last_ones(cli, store):
    assert ours(cli, "claims", "release", "orphan", "--yes").stdout == "orphan: released\n"
    assert store.complete([Completion(rid("orphan"), b"t", HOUR)]) == [False]
    (answer,) = store.claim([ClaimRequest(rid("orphan"), b"next", HOUR, HOUR)])
    assert (answer.attempt, answer.orphaned) == (2, True)


def test_a_released_one_that_waited_need_not_wait(cli, store):
    assert ours(cli, "claims", "release", "--all", "waiting", "--yes").exit_code == 0
    (answer,) = store.claim([ClaimRequest(rid("waiting"), b"next", HOUR, HOUR)])
    assert answer.attempt == 2


def test_release_leaves_alone_what_is_done(cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    result = ours(
        cli, "claims", "release", "processed", "quarantined", "failed", "nobody", "--yes", "--force"
    )
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "processed: left alone: processed",
        "quarantined: left alone: quarantined; `onceonly claims rerun` lets it run again",
        "failed: left alone: failed; `onceonly claims rerun` lets it run again",
    ]
    assert everything(tmp_path / "store.db") == before


@pytest.mark.parametrize("key", ["quarantined", "failed", "orphan", "waiting"])
def test_rerun_lets_it_run_from_attempt_one(key, cli, store, tmp_path):
    assert ours(cli, "claims", "rerun", key, "--yes").stdout == f"{key}: set to run again\n"
    with Once(f"sqlite:///{tmp_path / 'store.db'}", group="billing", max_attempts=1) as once:
        outcome = once.process(lambda _: "ran", {}, key=key)
    assert (outcome.result, outcome.attempt) == ("ran", 1)


def test_rerun_never_touches_what_is_processed(cli, store):
    result = ours(cli, "claims", "rerun", "processed", "marked", "--yes", "--force")
    assert result.exit_code == 1
    assert (state(store, "processed"), state(store, "marked")) == (State.PROCESSED, State.PROCESSED)


def test_all_of_a_state_may_be_named_at_once_within_a_scope(cli, store):
    done(store, "second", Status.QUARANTINED)
    claim(store, "k", scope="acme")
    store.complete([Completion(rid("k", scope="acme"), b"t", HOUR, Status.QUARANTINED)])
    scoped = ours(cli, "claims", "rerun", "--all", "quarantined", "--scope", "acme", "--yes", "--json")
    assert [(each["key"], each["scope"]) for each in lines(scoped)] == [("k", "acme")]
    rest = ours(cli, "claims", "rerun", "--all", "quarantined", "--yes", "--json")
    assert [each["key"] for each in lines(rest)] == ["quarantined", "second"]
    assert ours(cli, "claims", "rerun", "--all", "quarantined", "--yes").exit_code == 1


def test_thousands_are_set_to_run_again_in_steps(cli, store):
    ids = [rid(f"q-{n}") for n in range(1300)]
    store.claim([ClaimRequest(i, b"t", HOUR, HOUR) for i in ids])
    store.complete([Completion(i, b"t", HOUR, Status.QUARANTINED) for i in ids])
    result = ours(cli, "claims", "rerun", "--all", "quarantined", "--yes")
    assert result.stdout.count("set to run again") == 1301
    assert {record and record.state for record in store.peek(ids)} == {State.FREE}
    assert len(lines(ours(cli, "claims", "--state", "waiting", "--limit", "2000", "--json"))) == 1302


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name keys, or a state"),
        (("orphan", "--all", "orphaned"), "either keys or --all"),
        (("--all", "in-flight"), "in-flight"),
        (("--all", "processed"), "processed"),
        (("--all", "orphaned", "--force"), "--force is for keys"),
        (("orphan", "--limit", "1"), "--limit is for --all"),
    ],
    ids=["neither", "both", "live", "done", "force", "limit"],
)
@pytest.mark.parametrize("verb", ["release", "rerun"])
def test_which_records_must_be_clear(verb, options, said, cli, store):
    result = ours(cli, "claims", verb, *options, "--yes")
    assert result.exit_code == 2
    assert said in result.stderr


# --- while somebody is asked --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meanwhile", "code", "said"),
    [
        ("processed", 1, "orphan: left alone: it changed meanwhile"),
        ("taken over", 4, "orphan: left alone: in flight"),
        ("nothing", 0, "orphan: set to run again"),
    ],
)
def test_what_changes_while_the_operator_thinks_is_left_alone(meanwhile, code, said, store, tmp_path):
    request = ClaimRequest(rid("orphan"), b"next", HOUR, HOUR)

    def think() -> None:
        if meanwhile != "nothing":
            store.claim([request])
        if meanwhile == "processed":
            store.complete([Completion(rid("orphan"), b"next", HOUR)])

    options = ("claims", "rerun", "orphan", "--group", "billing", "--store", "sqlite:///store.db")
    shown, ended = answered(options, tmp_path, think, "y")
    assert said in shown
    assert ended == code
    (record,) = store.peek([rid("orphan")])
    assert record is not None
    assert (record.state is State.FREE) is (meanwhile == "nothing")
    assert record.attempt == (0 if meanwhile == "nothing" else 2)


def test_a_live_claim_keeps_only_itself_from_being_changed_once_it_began(store, tmp_path):
    def think() -> None:
        store.claim([ClaimRequest(rid("orphan"), b"next", HOUR, HOUR)])

    options = ("claims", "rerun", "failed", "orphan", "quarantined", "--group", "billing")
    shown, ended = answered((*options, "--store", "sqlite:///store.db"), tmp_path, think, "y")
    assert ended == 4
    assert "orphan: left alone: in flight" in shown
    assert (state(store, "failed"), state(store, "quarantined")) == (State.FREE, State.FREE)
    assert state(store, "orphan") is State.CLAIMED


def test_forget_takes_only_what_the_operator_saw(store, tmp_path):
    def think() -> None:
        store.claim([ClaimRequest(rid("orphan"), b"next", HOUR, HOUR)])
        store.complete([Completion(rid("orphan"), b"next", HOUR)])

    options = ("forget", "orphan", "failed", "--group", "billing", "--store", "sqlite:///store.db")
    shown, ended = answered(options, tmp_path, think, "y")
    assert "orphan: left alone: it changed meanwhile" in shown
    assert ended == 0
    assert (state(store, "orphan"), state(store, "failed")) == (State.PROCESSED, None)


@pytest.mark.parametrize("verb", ["release", "rerun"])
def test_force_is_for_the_owner_that_was_shown(verb, store, tmp_path):
    def think() -> None:
        store.claim([ClaimRequest(rid("orphan"), b"next", HOUR, HOUR)])

    options = ("claims", verb, "orphan", "live", "--force", "--group", "billing")
    shown, ended = answered((*options, "--store", "sqlite:///store.db"), tmp_path, think, "y")
    assert "orphan: left alone: it changed meanwhile" in shown
    assert ended == 0
    assert store.complete([Completion(rid("orphan"), b"next", HOUR)]) == [True]
    assert store.complete([Completion(rid("live"), b"t", HOUR)]) == [False]


def test_ctrl_c_at_the_question_changes_nothing_and_says_so(store, tmp_path):
    options = ("forget", "processed", "--group", "billing", "--store", "sqlite:///store.db")
    shown, ended = answered(options, tmp_path, lambda: None, "\x03")
    assert "nothing was changed" in shown
    assert "Traceback" not in shown
    assert ended == 128 + signal.SIGINT
    assert state(store, "processed") is State.PROCESSED


def test_ctrl_c_at_any_moment_of_the_question_changes_nothing_and_says_so(cli, store, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(acting, "on_terminal", lambda: True)
    monkeypatch.setattr(click, "echo", interrupted)
    result = ours(cli, "forget", "processed")
    assert (result.exit_code, "nothing was changed" in result.stderr) == (128 + signal.SIGINT, True)
    assert state(store, "processed") is State.PROCESSED


@pytest.mark.parametrize("answer", ["n", "", "yess", "\x04"], ids=["no", "enter", "mistyped", "end"])
def test_only_a_yes_is_a_yes(answer, store, tmp_path):
    options = ("forget", "processed", "--group", "billing", "--store", "sqlite:///store.db")
    shown, ended = answered(options, tmp_path, lambda: None, answer)
    assert "processed: processed, attempt 1" in shown
    assert "Forget 1 record? [y/N]" in shown
    assert "nothing was changed" in shown
    assert ended == 1
    assert state(store, "processed") is State.PROCESSED


def answered(
    options: tuple[str, ...], directory: Path, think: Callable[[], None], answer: str
) -> tuple[str, int]:
    """On a terminal, where ``think`` happens between question and answer."""
    seat, screen = pty.openpty()
    with started([*ONCEONLY, *options], cwd=directory, stdin=screen, stdout=screen, stderr=screen) as process:
        os.close(screen)
        shown = b""
        while not shown.endswith(b"[y/N] "):
            shown += os.read(seat, 65536)
        think()
        if answer == "\x03":
            process.send_signal(signal.SIGINT)  # as the terminal would, were it theirs
        else:
            os.write(seat, answer.encode() + (b"" if answer == "\x04" else b"\n"))
        with suppress(OSError):  # Linux: the last writer has hung up
            while part := os.read(seat, 65536):
                shown += part
        os.close(seat)
    return shown.decode(), process.returncode


# --- windows ----------------------------------------------------------------------------------


def test_windows_are_set_shown_and_cleared(cli, store):
    assert cli("windows").stderr == "no window is set in the store: those in the code count\n"
    said = cli("windows", "set", "billing", "24h").stdout
    assert said == "billing: 24h; running workers follow within 2 s\n"
    cli("windows", "set", "billing", "analytics", "--type", "click")
    cli("windows", "set", "mail", "1h30m")
    header, *rows = [line.split() for line in cli("windows").stdout.splitlines()]
    assert header == ["group", "type", "window", "set"]
    assert [row[0:2] for row in rows] == [["billing", "24h"], ["billing", "click"], ["mail", "1h30m"]]
    found = lines(cli("windows", "--json", "--group", "billing"))
    assert [(each["type"], each["window"]) for each in found] == [(None, 86400.0), ("click", 300.0)]
    assert cli("windows", "clear", "billing", "--type", "click").exit_code == 0
    again = cli("windows", "clear", "billing", "--type", "click", "--json")
    assert (again.exit_code, lines(again)) == (1, [{"group": "billing", "type": "click", "cleared": False}])
    assert len(lines(cli("windows", "--json"))) == 2


def test_no_dedup_must_be_meant(cli, store):
    refused = cli("windows", "set", "billing", "none", text="y\n")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert lines(cli("windows", "--json")) == []
    (found,) = lines(cli("windows", "set", "billing", "none", "--yes", "--json"))
    assert found["window"] is None
    assert "none: no dedup" in cli("windows").stdout


def test_a_group_that_nobody_has_is_noted(cli, store):
    result = cli("windows", "set", "biling", "24h")
    assert result.exit_code == 0
    assert "no record of 'biling' yet; it has billing, mail" in result.stderr


@pytest.mark.parametrize("bad", ["soon", "0s", "-1h", "24", "", "1000000d"])
def test_a_window_that_is_none_is_refused_by_name(bad, cli, store):
    result = cli("windows", "set", "--", "billing", bad)
    assert result.exit_code == 2
    assert "WINDOW" in result.stderr
    assert lines(cli("windows", "--json")) == []


def test_a_running_worker_follows_within_seconds(store, tmp_path):
    with Once(f"sqlite:///{tmp_path / 'store.db'}", group="billing", window="24h") as worker:

        def remembered(key: str) -> float:
            worker.process(lambda _: None, {}, key=key)
            record = worker.peek(key)
            assert record is not None
            return round((record.expires_at or 0) - (record.done_at or 0))

        assert remembered("before") == 86400
        set_it = run("windows", "set", "billing", "5m", "--store", "sqlite:///store.db", directory=tmp_path)
        assert set_it.returncode == 0, set_it.stderr
        give_up = time.monotonic() + 10
        changed = time.monotonic()
        while remembered(f"k{time.monotonic()}") != 300:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert time.monotonic() - changed < 5
        assert remembered("before") == 86400  # what was done before keeps the window it had


# --- purge ------------------------------------------------------------------------------------


def expire(store: SqliteStore, count: int) -> None:
    store.mark_seen([Mark(rid(f"old-{n}"), 0.001) for n in range(count)])
    time.sleep(0.002)


def test_purge_removes_what_has_expired_and_nothing_else(cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    expire(store, 25_000)
    result = cli("purge")
    assert result.stdout.startswith("25,000 expired records removed in ")
    assert everything(tmp_path / "store.db") == before
    (found,) = lines(cli("purge", "--json"))
    assert found["removed"] == 0


def test_purge_as_a_job_goes_on_when_the_store_was_away_and_ends_when_told_to(store, tmp_path):
    expire(store, 10)
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    pipe = subprocess.PIPE
    url = "sqlite:///store.db?timeout=0.05"
    with started(
        [*ONCEONLY, "purge", "--every", "300ms", "--json", "--store", url],
        cwd=tmp_path,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["removed"] == 10
        expire(store, 20)
        blocker.execute("BEGIN IMMEDIATE")
        assert "locked" in process.stderr.readline()
        blocker.execute("ROLLBACK")
        blocker.close()
        while not (removed := json.loads(process.stdout.readline())["removed"]):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    assert removed == 20
    assert state(store, "live") is State.CLAIMED


def test_a_job_follows_a_store_that_was_put_in_the_place_of_another(store, tmp_path):
    with started(
        [*ONCEONLY, "purge", "--every", "200ms", "--json", "--store", "sqlite:///store.db"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["removed"] == 0
        for path in tmp_path.glob("store.db*"):
            path.rename(tmp_path / f"old-{path.name}")
        assert "there is no SQLite file" in process.stderr.readline()
        other = SqliteStore(tmp_path / "new.db")
        expire(other, 7)
        other.close()
        (tmp_path / "new.db").rename(tmp_path / "store.db")
        while not (removed := json.loads(process.stdout.readline())["removed"]):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    assert removed == 7


@pytest.mark.parametrize("bad", ["soon", "0s"])
def test_a_pause_that_is_none_is_refused_by_name(bad, cli, store):
    result = cli("purge", "--every", bad)
    assert (result.exit_code, "--every" in result.stderr) == (2, True)


# --- terminals and pipes ------------------------------------------------------------------------


def test_on_a_terminal_there_are_tables_that_are_never_cut_off(store, tmp_path):
    command = [*ONCEONLY, "claims", "--store", "sqlite:///store.db"]
    wide, code = run_on_terminal(command, directory=tmp_path, columns=120, TERM="xterm")
    assert code == 0
    assert "\x1b[1m" in wide
    assert "─" in wide
    narrow, _ = run_on_terminal(command, directory=tmp_path, columns=30, TERM="xterm")
    assert "─" not in narrow
    assert "…" not in wide + narrow
    assert narrow.count("state    orphaned\n") == 1
    for key in ("orphan", "live", "waiting", "quarantined"):
        assert key in wide
        assert key in narrow


def test_in_a_pipe_there_are_lines_without_colours_or_trailing_blanks(store, tmp_path):
    shown = run("claims", "--store", "sqlite:///store.db", directory=tmp_path, TERM="xterm")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout
    assert shown.stdout.startswith("key  ")
    assert all(line == line.rstrip() for line in shown.stdout.splitlines())


def test_purge_counts_on_a_terminal(store, tmp_path):
    expire(store, 30_000)
    command = [*ONCEONLY, "purge", "--store", "sqlite:///store.db"]
    shown, code = run_on_terminal(command, directory=tmp_path, TERM="xterm")
    assert code == 0
    assert "20000 removed" in shown.replace(",", "")
    assert "30,000 expired records removed" in shown


def quarantine(store: SqliteStore, count: int) -> None:
    ids = [rid(f"q-{n:05d}") for n in range(count)]
    store.claim([ClaimRequest(i, b"t", HOUR, HOUR) for i in ids])
    store.complete([Completion(i, b"t", HOUR, Status.QUARANTINED) for i in ids])


@pytest.mark.parametrize("end", ["reader left", "disk full", "signal"])
def test_a_bulk_change_that_is_ended_half_way_says_how_far_it_came_and_loses_no_key(end, store, tmp_path):
    quarantine(store, 20_000)
    options = ("claims", "rerun", "--all", "quarantined", "--yes", "--group", "billing")
    command = [*ONCEONLY, *options, "--store", "sqlite:///store.db"]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=full if end == "disk full" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process,
    ):
        if process.stdout:
            process.stdout.readline()
        if end == "signal":
            process.send_signal(signal.SIGINT)
        elif process.stdout:
            process.stdout.close()
        if end == "signal" and process.stdout:
            process.stdout.read()
        assert process.stderr
        told = process.stderr.read()
        process.wait(20)
    assert process.returncode == {"reader left": 141, "disk full": 3, "signal": 130}[end]
    assert "Traceback" not in told
    counts = store.stats().groups["billing"]
    changed = counts[State.FREE] - 1
    assert 0 < changed < 20_001
    assert f"stopped: {changed:,} set to run again, {20_001 - changed:,} not tried" in told
    assert changed + counts[State.QUARANTINED] == 20_001


@pytest.mark.parametrize(
    "options", [("stats",), ("stats", "--json"), ("claims",), ("peek", "live")], ids=" ".join
)
def test_an_output_that_is_full_is_told(options, store, tmp_path):
    command = [*ONCEONLY, *options, "--store", "sqlite:///store.db"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(ONCEONLY_GROUP="billing"),
            check=False,
        )
    assert done.returncode == 3
    assert "the standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", ["stats", "stats --json", "claims", "peek live"])
def test_an_output_that_is_closed_is_told(options, store, tmp_path):
    shell = f"{' '.join(map(_quoted, ONCEONLY))} {options} --store sqlite:///store.db --group billing >&-"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 3
    assert b"the standard output: Bad file descriptor" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_traceback(store, tmp_path):
    shell = f"{' '.join(map(_quoted, ONCEONLY))} claims --store sqlite:///store.db --json | head -n 1"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, capture_output=True, env=environment(), check=False
    )
    assert json.loads(done.stdout)["key"] == "orphan"
    assert b"Traceback" not in done.stderr


def _quoted(word: str) -> str:
    return f"'{word}'"


def test_a_terminal_of_plain_ascii_is_no_error(store, tmp_path):
    claim(store, "schlüssel-\N{GRINNING FACE}")
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    shown = run("claims", "--store", "sqlite:///store.db", directory=tmp_path, **env)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert r"schl\xfcssel-\U0001f600" in shown.stdout


# --- options, errors, help ----------------------------------------------------------------------


def commands(
    of: click.Command = command, context: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """Every command with its path."""
    name = "onceonly" if context is None else (of.name or "")
    here = click.Context(of, context, info_name=name)
    yield here.command_path, here
    for each in getattr(of, "commands", {}).values():
        yield from commands(each, here)


COMMANDS = dict(commands())
OPTIONS = [
    (path, option)
    for path, context in COMMANDS.items()
    for option in context.command.params
    if isinstance(option, click.Option) and option.name != "version"
]


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda value: getattr(value, "name", value))
def test_every_option_has_a_twin_in_the_environment(path, option, monkeypatch):
    flag = option.opts[-1]
    shared = flag in ("--store", "--json") or (flag == "--group" and path != "onceonly dedupe")
    words = ["onceonly", flag] if shared else [*path.split(), flag]
    twin = "_".join(word.strip("-").replace("-", "_").upper() for word in words)
    monkeypatch.setenv(twin, "given")
    assert option.resolve_envvar_value(COMMANDS[path]) == "given"
    (_, shown) = option.get_help_record(COMMANDS[path]) or ("", "")
    assert twin in shown


def test_twins_are_heard(cli, store):
    env = {"ONCEONLY_GROUP": "billing", "ONCEONLY_JSON": "1", "ONCEONLY_CLAIMS_STATE": "orphaned waiting"}
    assert [each["key"] for each in lines(cli("claims", **env))] == ["orphan", "waiting"]
    env |= {"ONCEONLY_FORGET_YES": "true", "ONCEONLY_FORGET_DRY_RUN": "1"}
    assert lines(cli("forget", "processed", **env))[0]["came"] == "would"


@pytest.mark.parametrize(
    "options",
    [
        ("claims", "--limit", "2", "rerun", "--all", "quarantined"),
        ("claims", "--state", "failed", "release", "orphan"),
        ("windows", "--group", "mail", "set", "billing", "24h"),
    ],
    ids=" ".join,
)
def test_an_option_that_would_do_nothing_where_it_stands_is_refused(options, cli, store, tmp_path):
    before = everything(tmp_path / "store.db")
    result = cli(*options, ONCEONLY_GROUP="billing")
    assert result.exit_code == 2
    assert f"{options[1]} before '{options[3]}' would do nothing" in result.stderr
    assert everything(tmp_path / "store.db") == before
    assert store.windows([ReadWindows()]) == [[]]


def test_a_canary_is_the_oldest_of_all(cli, store):
    done(store, "second", Status.QUARANTINED)
    result = ours(cli, "claims", "rerun", "--all", "quarantined", "--limit", "1", "--yes")
    assert result.stdout == "quarantined: set to run again\n"
    assert state(store, "second") is State.QUARANTINED


@pytest.mark.parametrize(
    ("options", "variable", "value"),
    [
        (("purge",), "ONCEONLY_PURGE_EVERY", "soon"),
        (("stats",), "ONCEONLY_STORE", "nonsense"),
        (("peek", "k"), "ONCEONLY_GROUP", "x" * 513),
        (("claims",), "ONCEONLY_CLAIMS_LIMIT", "many"),
        (("claims",), "ONCEONLY_CLAIMS_STATE", "lost"),
        (("stats",), "ONCEONLY_JSON", "perhaps"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_value_in_the_environment_is_told_by_its_variable(options, variable, value, cli, store):
    result = cli(*options, **{variable: value})
    assert result.exit_code == 2
    assert variable in result.stderr


@pytest.mark.parametrize("given", ["before", "after", "environment", "both"])
def test_what_a_group_of_commands_was_told_its_commands_know(given, cli, store, tmp_path):
    url = ("--store", f"sqlite:///{tmp_path / 'store.db'}", "--group", "billing", "--json")
    wrong = {"ONCEONLY_STORE": "sqlite:///no-such.db", "ONCEONLY_GROUP": "mail"}
    right = {"ONCEONLY_STORE": url[1], "ONCEONLY_GROUP": "billing", "ONCEONLY_JSON": "1"}
    words = ("rerun", "failed", "--dry-run")
    result = {
        "before": lambda: cli("claims", *url, *words, store=None, **wrong),
        "after": lambda: cli("claims", *words, *url, store=None, **wrong),
        "environment": lambda: cli("claims", *words, store=None, **right),
        "both": lambda: cli("claims", "--store", "sqlite:///no.db", *words, *url, store=None),
    }[given]()
    assert result.exit_code == 0, result.output
    assert lines(result)[0]["key"] == "failed"


@pytest.mark.parametrize(
    ("options", "store_file", "said"),
    [
        (("stats",), None, "pass --store sqlite:///payments.db, or set ONCEONLY_STORE"),
        (("stats",), "absent.db", "there is no SQLite file"),
        (("stats",), "foreign.db", "no onceonly store"),
        (("stats",), "text.db", "is not a SQLite database"),
        (("peek", "k"), "store.db", "pass --group NAME, or set ONCEONLY_GROUP"),
        (("forget", "k", "--group", "x" * 513), "store.db", "group"),
        (("peek", "--group", "g", "k" * 513), "store.db", "more than 512"),
        (("peek", "--group", "g", ""), "store.db", "empty"),
        (("peek", "--group", "g"), "store.db", "KEY..."),
        (("claims", "--state", "lost"), "store.db", "'lost' is not one of"),
        (("claims", "--limit", "0"), "store.db", "--limit"),
        (("nonsense",), "store.db", "No such command"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else None,
)
@pytest.mark.usefixtures("store")
def test_errors_say_what_is_wrong_and_change_nothing(options, store_file, said, cli, tmp_path):
    with sqlite3.connect(tmp_path / "foreign.db") as foreign:
        foreign.execute("CREATE TABLE orders (id)")
    foreign.close()
    (tmp_path / "text.db").write_text("this is no database, only a text that is long enough to be one" * 20)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.db")}
    result = cli(*options, store=store_file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.db")} == before


def test_memory_is_refused_for_it_would_be_an_empty_store(cli):
    result = cli("stats", "--store", "memory://", store=None)
    assert result.exit_code == 2
    assert "memory:// lives in one process" in result.stderr


def test_a_store_that_does_not_answer_ends_with_three(cli, store, tmp_path):
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    result = ours(cli, "forget", "processed", "--yes", store="store.db?timeout=0.05")
    blocker.close()
    assert result.exit_code == 3
    assert "locked" in result.stderr
    assert state(store, "processed") is State.PROCESSED


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_that_is_shown_whole(path, cli):
    result = cli(*path.split()[1:], "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: {path}")
    assert "..." not in result.stdout.partition("Commands:")[2]
    assert "\\b" not in result.stdout
    for option in COMMANDS[path].command.params:
        assert not isinstance(option, click.Option) or option.help


# --- completion ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "said"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete ")]
)
def test_completion_scripts(shell, said, cli):
    for result in (cli("completion", shell), cli("completion", SHELL=f"/bin/{shell}")):
        assert result.exit_code == 0
        assert said in result.stdout
        assert "_ONCEONLY_COMPLETE" in result.stdout


def test_a_shell_that_is_not_known_is_asked_for(cli):
    result = cli("completion", SHELL="/bin/dash")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "bash, zsh, fish" in result.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("onceonly cl", ["plain,claims"]),
        ("onceonly claims re", ["plain,release", "plain,rerun"]),
        ("onceonly stats --group b", ["plain,billing"]),
        ("onceonly claims rerun --group m", ["plain,mail"]),
        ("onceonly windows set b", ["plain,billing"]),
        ("onceonly windows set billing a", ["plain,analytics"]),
        ("onceonly stats --store sqlite:///no.db --group b", []),
        ("onceonly stats --store nonsense --group b", []),
    ],
)
def test_a_shell_is_told_what_may_come_next(words, offered, store, tmp_path):
    more = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    env = {"_ONCEONLY_COMPLETE": "bash_complete", "ONCEONLY_STORE": "sqlite:///store.db", **more}
    done = run(directory=tmp_path, **env)
    assert (done.stdout.split(), done.stderr) == (offered, "")
    assert not (tmp_path / "no.db").exists()


# --- wording ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (86400, "24h"),
        (5400, "1h30m"),
        (300, "5m"),
        (172800, "2d"),
        (129600, "36h"),
        (0.5, "500ms"),
        (90061, "25h1m1s"),
        (1.25, "1s250ms"),
        (0.0001, "0.1ms"),
    ],
)
def test_a_window_is_shown_as_it_can_be_given_again(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("moment", "said"),
    [(1000.0, "now"), (1000.9, "now"), (1061.0, "in 1m"), (995.0, "5s ago"), (9e4, "in 1d")],
)
def test_a_moment_is_told_by_its_distance(moment, said):
    assert relative(moment, 1000.0) == said


def test_a_clock_set_to_nonsense_is_no_error():
    assert iso(0.0) == "1970-01-01T00:00:00Z"
    assert iso(1e300) == "1e+300"
