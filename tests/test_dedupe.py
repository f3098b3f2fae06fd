"""``onceonly dedupe``, run as a user runs it: what it passes on, what it remembers, what a crash leaves."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onceonly import Once
from onceonly.cli.dedupe.formats import Csv, Identity, Lines, Ndjson
from onceonly.cli.dedupe.reading import Chunk, _split
from onceonly.stores.sqlite import SqliteStore
from tests.commands import ONCEONLY, environment, run_on_terminal
from tests.dedupe_helpers import KILLED, MAIN, MOMENTS, run, run_killed

SIGKILLED = -signal.SIGKILL


def ndjson(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first_of_each(text: str) -> str:
    return "".join(dict.fromkeys(text.splitlines(keepends=True)))


def many(count: int) -> str:
    """Every third line came before."""
    return "".join(f"line {n if n % 3 else n // 2}\n" for n in range(count))


# --- lines ------------------------------------------------------------------------------------


def test_each_line_is_passed_on_once_in_order(tmp_path):
    done = run(tmp_path, text="b\na\nb\nc\na\n")
    assert (done.returncode, done.stdout) == (0, b"b\na\nc\n")
    assert done.stderr.startswith(b"5 lines: 3 passed on, 2 duplicates; ")


@pytest.mark.parametrize("options", [(), ("--output", "out")], ids=["to a pipe", "to a file"])
def test_the_same_file_fed_twice_yields_nothing_the_second_time(options, tmp_path):
    (tmp_path / "in").write_text(many(50))
    first = run(tmp_path, "in", "--batch", "7", *options)
    passed = (tmp_path / "out").read_text() if options else first.stdout.decode()
    assert passed == first_of_each(many(50))
    again = run(tmp_path, "in", "--batch", "7", *options)
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"50 lines: 0 passed on, 50 duplicates" in again.stderr
    if options:
        assert (tmp_path / "out").read_text() == passed


def test_several_files_are_one_stream(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("2\n3\n")
    assert run(tmp_path, "a", "b").stdout == b"1\n2\n3\n"
    assert run(tmp_path, "-", text="3\n4\n").stdout == b"4\n"


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (b"a\nb\na", b"a\nb\n"),
        (b"a", b"a\n"),
        (b"", b""),
        (b"\n", b"\n"),
        (b"a\n\nb\n\n", b"a\n\nb\n"),
        (b"a\r\na\nb\r\n", b"a\r\nb\r\n"),
        (b"\xff\xfe\na\n\xff\xfe\n", b"\xff\xfe\na\n"),
        ("ä\nä\n\N{GRINNING FACE}\n".encode(), "ä\n\N{GRINNING FACE}\n".encode()),
        (
            b"x" * 600 + b"\n" + b"x" * 601 + b"\n" + b"x" * 600 + b"\n",
            b"x" * 600 + b"\n" + b"x" * 601 + b"\n",
        ),
        (b"a\x00b\na\na\x00b\n", b"a\x00b\na\n"),
    ],
    ids=["no end", "one", "nothing", "empty line", "empty lines", "CRLF", "bytes", "UTF-8", "long", "NUL"],
)
def test_lines_of_every_kind_come_out_as_they_went_in(text, passed, tmp_path):
    assert run(tmp_path, text=text).stdout == passed
    assert run(tmp_path, text=text).stdout == b""


def test_a_line_that_looks_like_the_digest_of_another_is_told_apart(tmp_path):
    long = "x" * 600
    key = Lines().parse(Chunk(1, [long], 0)).keys[0]
    assert run(tmp_path, text=f"{long}\n{key}\n").stdout.decode() == f"{long}\n{key}\n"


def test_a_line_without_end_is_refused_by_its_number(tmp_path):
    code = MAIN.replace("from", "import onceonly.cli.dedupe.reading as r; r.MAX_LINE = 2**20; from", 1)
    command = [sys.executable, "-c", code, "--store", "sqlite:///store.db"]
    text = b"short\n" + b"x" * (2**20 * 3)
    done = subprocess.run(command, cwd=tmp_path, input=text, capture_output=True, check=False)
    assert done.returncode == 5
    assert b"-:2: this line has no end within 1 MiB" in done.stderr


@pytest.mark.parametrize("size", range(1, 9))
def test_chunks_may_end_anywhere(size):
    data, rest, lines = b"ab\n\nc\nde", b"", []
    for at in [*range(0, len(data), size), len(data)]:
        part = data[at : at + size]
        whole, rest = _split(rest + part, end=not part)
        if whole is not None:
            lines += whole.split(b"\n")
    assert lines == [b"ab", b"", b"c", b"de"]


# --- the store --------------------------------------------------------------------------------


def test_what_it_passed_on_is_known_to_the_library_and_the_other_way_round(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with Once(url, group="clicks") as once:
        assert once.first_time("a")
        assert run(tmp_path, "--group", "clicks", text="a\nb\n").stdout == b"b\n"
        assert not once.first_time("b")
        record = once.peek("b")
        assert record is not None
        assert json.loads(record.result or b"") == ["d1", 1, 2]


def test_a_claim_that_is_running_is_not_passed_over(tmp_path):
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once, once.claim("b"):
        done = run(tmp_path, "--output", "out", text="a\nb\n")
        assert done.returncode == 4
        assert b"'b'" in done.stderr
        assert (tmp_path / "out").read_text() == ""
    assert run(tmp_path, "--output", "out", text="a\nb\n").returncode == 0
    assert (tmp_path / "out").read_text() == "a\n"


def test_the_window_set_in_the_store_wins(tmp_path):
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once:
        once.set_window("1h")
        run(tmp_path, "--window", "7d", text="a\n")
        record = once.peek("a")
        assert record is not None
        assert record.expires_at is not None
        assert record.expires_at - time.time() == pytest.approx(3600, abs=60)
        once.set_window(None)
        assert run(tmp_path, text="a\na\n").stdout == b"a\na\n"


@pytest.mark.parametrize(
    ("store", "said"),
    [("memory://", "sqlite:///"), ("sqlite:///no/such/dir/x.db", "no directory"), ("nonsense", "by URL")],
)
def test_a_store_that_will_not_do_is_refused(store, said, tmp_path):
    done = run(tmp_path, text="a\n", store=store)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_store_that_is_locked_is_told_and_nothing_is_passed_on(tmp_path):
    SqliteStore(tmp_path / "store.db").close()
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    done = run(tmp_path, "--output", "out", text="a\n", store="sqlite:///store.db?timeout=0.1")
    holder.close()
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"Traceback" not in done.stderr
    assert run(tmp_path, "--output", "out", text="a\n").returncode == 0
    assert (tmp_path / "out").read_text() == "a\n"


# --- killed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_line_is_in_the_output_once_whenever_it_was_killed(moment, tmp_path):
    text = "".join(f"{'bad' if n % 5 == 4 else n % 6}\n" for n in range(12))
    rows = "".join(
        "{bad\n" if "bad" in line else json.dumps({"id": line}) + "\n" for line in text.splitlines()
    )
    (tmp_path / "in.ndjson").write_text(rows)
    files = ("--output", "out", "--errors", "err", "--report", "dup")
    options = ("in.ndjson", "--key", "$.id", "--batch", "1", *files)
    kills = 0
    for count in range(1, 100):
        for name in ("store.db", "store.db-wal", "store.db-shm", "out", "err", "dup"):
            (tmp_path / name).unlink(missing_ok=True)
        done = run_killed(tmp_path, moment, count, *options)
        if done.returncode == 0:
            break
        assert done.returncode == SIGKILLED, done.stderr
        kills += 1
        assert run(tmp_path, *options).returncode == 0
        expected = first_of_each(
            "".join(line for line in rows.splitlines(keepends=True) if "bad" not in line)
        )
        assert (tmp_path / "out").read_text() == expected, count
        assert [each["line"] for each in ndjson(tmp_path / "err")] == [5]  # equal ones are set aside once
        ndjson(tmp_path / "dup")  # whole lines only
    assert kills >= 3


def test_killed_again_and_again_it_still_comes_to_the_same_end(tmp_path):
    (tmp_path / "in").write_text(many(300))
    options = ("in", "--batch", "40", "--output", "out")
    for count, moment in enumerate(MOMENTS * 2, 1):
        run_killed(tmp_path, moment, 1 + count % 4, *options)
    assert run(tmp_path, *options).returncode == 0
    assert (tmp_path / "out").read_text() == first_of_each(many(300))


@pytest.mark.parametrize(
    "moment", ["before the marks", "after the marks", "after the flush", "before the commit"]
)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_to_a_pipe_a_kill_loses_nothing_and_repeats_one_batch_at_the_most(moment, count, tmp_path):
    (tmp_path / "in").write_text("".join(f"{n}\n" for n in range(5 * 20_000)))
    options = ("in", "--batch", "20000")
    first = run_killed(tmp_path, moment, count + 2 * (moment == "before the commit"), *options)
    assert first.returncode == SIGKILLED
    second = run(tmp_path, *options)
    assert second.returncode == 0
    passed = (first.stdout + second.stdout).decode().split()
    assert set(passed) == {str(n) for n in range(100_000)}
    repeated = len(passed) - 100_000
    assert repeated <= 22_000  # a batch ends with the chunk that filled it
    assert (repeated > 0) is (moment in ("after the flush", "before the commit"))


def test_the_moments_of_a_kill_are_all_there():
    assert all(f'"{moment}"' in KILLED for moment in MOMENTS)


# --- files ------------------------------------------------------------------------------------


def test_an_output_that_somebody_else_wrote_is_left_alone(tmp_path):
    (tmp_path / "out").write_text("mine\n")
    done = run(tmp_path, "--output", "out", text="a\n")
    assert done.returncode == 2
    assert b"--append" in done.stderr
    assert (tmp_path / "out").read_text() == "mine\n"
    assert run(tmp_path, "--output", "out", "--append", text="a\n").returncode == 0
    assert (tmp_path / "out").read_text() == "mine\na\n"


def test_what_somebody_added_after_the_end_of_a_run_is_not_cut_off(tmp_path):
    run(tmp_path, "--output", "out", text="a\n")
    with (tmp_path / "out").open("a") as out:
        out.write("mine\n")
    assert run(tmp_path, "--output", "out", text="b\n").returncode == 2
    assert (tmp_path / "out").read_text() == "a\nmine\n"
    assert run(tmp_path, "--output", "out", "--append", text="b\n").returncode == 0
    assert (tmp_path / "out").read_text() == "a\nmine\nb\n"


def test_an_output_that_has_lost_lines_is_told(tmp_path):
    run(tmp_path, "--output", "out", text="a\nb\n")
    (tmp_path / "out").write_text("a\n")
    done = run(tmp_path, "--output", "out", text="c\n")
    assert done.returncode == 2
    assert b"has 2 bytes, and 4 were written to it" in done.stderr


def test_an_output_that_was_moved_away_begins_anew(tmp_path):
    run(tmp_path, "--output", "out", text="a\n")
    (tmp_path / "out").rename(tmp_path / "old")
    run(tmp_path, "--output", "out", text="a\nb\n")
    assert (tmp_path / "out").read_text() == "b\n"


def test_two_cannot_write_to_one_output(tmp_path):
    command = [sys.executable, "-c", MAIN, "--store", "sqlite:///store.db", "--output", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, env=environment()) as other:
        assert other.stdin
        give_up = time.monotonic() + 20
        while not (tmp_path / "out").exists() and time.monotonic() < give_up:
            time.sleep(0.02)
        time.sleep(0.1)
        done = run(tmp_path, "--output", "out", text="a\n")
        other.stdin.close()
    assert done.returncode == 2
    assert b"another process is writing to it" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("in", "--output", "in"), "are the same file"),
        (("in", "--output", "o", "--report", "o"), "are the same file"),
        (("in", "--output", "/dev/null"), "is no regular file"),
        (("absent",), "absent: No such file"),
        ((".",), "is a directory"),
        (("in", "--window", "soon"), "--window='soon'"),
        (("in", "--key", "id"), "in: plain lines have no fields"),
        (("in", "--format", "csv", "--delimiter", ";;"), "must be one character"),
        (("in", "--format", "ndjson", "--key", "id"), "'id'"),
        (("in", "--group", ""), "group"),
    ],
)
def test_bad_options_are_named(options, said, tmp_path):
    (tmp_path / "in").write_text("a\n")
    done = run(tmp_path, *options)
    assert done.returncode == 2, done.stderr
    assert said.encode() in done.stderr
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "in").read_text() == "a\n"


# --- NDJSON -----------------------------------------------------------------------------------


def test_ndjson_is_known_by_its_key(tmp_path):
    (tmp_path / "in.ndjson").write_text('{"id": 1, "n": 1}\n\n{"n": 2, "id": "1"}\n{"id": 2}\n')
    assert run(tmp_path, "in.ndjson", "--key", "$.id").stdout == b'{"id": 1, "n": 1}\n{"id": 2}\n'


def test_ndjson_without_a_key_is_known_by_all_it_says(tmp_path):
    text = '{"a": 1, "b": 2}\n{"b":2,"a":1.0}\n{"a": 1}\n'
    done = run(tmp_path, "--format", "ndjson", text=text)
    assert done.stdout == b'{"a": 1, "b": 2}\n{"a": 1}\n'


def test_a_fingerprint_alone_says_what_makes_two_records_equal(tmp_path):
    text = '{"user": 1, "at": 1}\n{"user": 1, "at": 2}\n{"user": 2, "at": 3}\n'
    done = run(tmp_path, "--format", "ndjson", "--fingerprint", "user", text=text)
    assert done.stdout == b'{"user": 1, "at": 1}\n{"user": 2, "at": 3}\n'


@pytest.mark.parametrize("apart", [False, True], ids=["in one batch", "in another run"])
def test_another_payload_under_a_key_is_no_duplicate(apart, tmp_path):
    first, rest = '{"id": 1, "sum": 5}\n', '{"id": 1, "sum": 5}\n{"id": 1, "sum": 6}\n{"id": 2, "sum": 5}\n'
    options = ("--format", "ndjson", "--key", "$.id", "--fingerprint", "sum")
    if apart:
        run(tmp_path, *options, text=first)
    done = run(tmp_path, *options, text=rest if apart else first + rest)
    assert done.returncode == 5
    line = 2 if apart else 3
    assert f"-:{line}: another payload under the key of -:1".encode() in done.stderr
    assert done.stdout == (b"" if apart else first.encode())
    again = run(tmp_path, *options, "--errors", "err", text=rest)
    assert again.stdout == b'{"id": 2, "sum": 5}\n'
    (error,) = ndjson(tmp_path / "err")
    assert (error["line"], error["text"]) == (2, '{"id": 1, "sum": 6}')


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"n": 1}', "$.id found no id"),
        ('{"id": [1]}', "a key must be text"),
        ('{"id": ""}', "$.id found no id"),
        ('{"id": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "recursion"),
        ('{"id": "' + "x" * 600 + '"}', "more than 512"),
    ],
    ids=["not JSON", "no key", "list", "empty", "NaN", "deep", "long"],
)
def test_a_malformed_line_stops_with_its_number_once_all_before_it_is_done(line, reason, tmp_path):
    text = f'{{"id": 1}}\n{line}\n{{"id": 2}}\n'
    options = ("--format", "ndjson", "--key", "$.id")
    done = run(tmp_path, *options, text=text)
    assert (done.returncode, done.stdout) == (5, b'{"id": 1}\n')
    assert b"-:2: " in done.stderr
    assert reason in done.stderr.decode()
    aside = run(tmp_path, *options, "--errors", "err", text=text)
    assert (aside.returncode, aside.stdout) == (0, b'{"id": 2}\n')
    assert b"1 malformed" in aside.stderr
    (error,) = ndjson(tmp_path / "err")
    assert (error["source"], error["line"], error["text"]) == ("-", 2, line)
    assert reason in str(error["error"])
    run(tmp_path, *options, "--errors", "err", text=text)
    assert len(ndjson(tmp_path / "err")) == 1


def test_the_report_names_the_place_of_the_first(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"id": "x"}\n{"id": "y"}\n{"id": "x"}\n')
    (tmp_path / "b.ndjson").write_text('{"id": "z"}\n{"id": "y"}\n')
    run(tmp_path, "a.ndjson", "--key", "$.id", "--report", "dup")
    run(tmp_path, "b.ndjson", "--key", "$.id", "--report", "dup")
    a, b = str(tmp_path / "a.ndjson"), str(tmp_path / "b.ndjson")
    assert ndjson(tmp_path / "dup") == [
        {"source": a, "line": 3, "key": "x", "first": {"source": a, "line": 1}},
        {"source": b, "line": 2, "key": "y", "first": {"source": a, "line": 2}},
    ]


def test_the_report_says_null_where_another_made_the_record(tmp_path):
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once:
        once.process(lambda _: {"n": [1, 2]}, {}, key="a")
        once.process(lambda _: [1], {}, key="b")
        once.process(lambda _: None, {}, key="c")
    assert run(tmp_path, "--report", "dup", text="a\nb\nc\n").returncode == 0
    assert [line["first"] for line in ndjson(tmp_path / "dup")] == [None] * 3


# --- CSV --------------------------------------------------------------------------------------


def test_csv_is_known_by_a_column_and_comes_out_as_it_went_in(tmp_path):
    text = 'id,text\n1,"a ""b"", c"\n2,"two\nlines"\n1,again\n\n3,"x"\n'
    (tmp_path / "in.csv").write_text(text)
    done = run(tmp_path, "in.csv", "--key", "id")
    assert done.stdout.decode() == 'id,text\n1,"a ""b"", c"\n2,"two\nlines"\n3,"x"\n'
    assert run(tmp_path, "in.csv", "--key", "id").stdout == b""


def test_the_header_is_written_once(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffid,n\n1,1\n")
    (tmp_path / "b.csv").write_text("\ufeffid,n\n1,2\n2,2\n")
    options = ("--key", "id", "--output", "out", "--batch", "1")
    run(tmp_path, "a.csv", "b.csv", *options)
    assert (tmp_path / "out").read_text() == "id,n\n1,1\n2,2\n"
    (tmp_path / "c.csv").write_text("\ufeffid,n\n3,3\n")
    run(tmp_path, "c.csv", *options)
    assert (tmp_path / "out").read_text() == "id,n\n1,1\n2,2\n3,3\n"


def test_files_with_other_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n1,1\n")
    (tmp_path / "b.csv").write_text("id,m\n2,2\n")
    done = run(tmp_path, "a.csv", "b.csv", "--key", "id")
    assert done.returncode == 5
    assert b"b.csv has other columns" in done.stderr


def test_csv_without_header_and_with_another_delimiter(tmp_path):
    text = "1\ta\n2\tb\n1\tc\n"
    done = run(tmp_path, "--format", "csv", "--no-header", "--delimiter", "tab", "--key", "1", text=text)
    assert done.stdout.decode() == "1\ta\n2\tb\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("id,n\n1,1\n2\n3,3\n", 3, "1 fields, and there are 2 columns"),
        ('id,n\n1,1\n"2"x,2\n3,3\n', 3, "not CSV"),
        ('id,n\n1,1\n2,"open\n3,3\n', 3, "never closed"),
        ("id,n\n1,1\n,2\n3,3\n", 3, "it is empty"),
    ],
    ids=["fields", "quote", "open", "empty"],
)
def test_malformed_csv_is_told_by_its_line(text, line, reason, tmp_path):
    options = ("--format", "csv", "--key", "id")
    done = run(tmp_path, *options, text=text)
    assert (done.returncode, done.stdout) == (5, b"id,n\n1,1\n")
    assert f"-:{line}: ".encode() in done.stderr
    assert reason in done.stderr.decode()
    run(tmp_path, *options, "--errors", "err", text=text)
    assert ndjson(tmp_path / "err")[0]["line"] == line


def test_a_column_that_is_not_there_is_named(tmp_path):
    done = run(tmp_path, "--format", "csv", "--key", "nr", text="id,n\n1,2\n")
    assert done.returncode == 2
    assert b"one column 'nr', and there are 0; columns: 'id', 'n'" in done.stderr


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_csv_record_may_go_over_any_number_of_chunks(size):
    lines = ["id,n", '1,"a', "b", '"', "2,x", '3,"', '"']
    form, texts, numbers = Csv(Identity("id", ())), [], []
    for at in range(0, len(lines), size):
        found = form.parse(Chunk(at + 1, lines[at : at + size], 0))
        texts += found.texts
        numbers += found.numbers
        assert not found.malformed
    assert (texts, numbers) == (['1,"a\nb\n"', "2,x", '3,"\n"'], [2, 5, 6])
    assert form.end().malformed == []


def test_records_without_fields_in_common_with_the_fingerprint_are_malformed():
    found = Ndjson(Identity(None, ("user",))).parse(Chunk(1, ['{"a": 1}', '{"user": 1}'], 0))
    assert [bad.number for bad in found.malformed] == [1]
    assert found.numbers == [2]


# --- streams ----------------------------------------------------------------------------------


def test_in_a_stream_that_trickles_a_line_does_not_wait_for_the_next(tmp_path):
    command = [sys.executable, "-c", MAIN, "--store", "sqlite:///store.db"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, env=environment()) as process:
        assert process.stdin
        assert process.stdout
        for line in (b"a\n", b"b\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line  # or the test's time is up
        process.stdin.close()
    assert process.returncode == 0


def test_a_slow_reader_does_not_keep_other_writers_waiting(tmp_path):
    text = "".join(f"{n:0100d}\n" for n in range(20_000))
    (tmp_path / "in").write_text(text)
    command = [sys.executable, "-c", MAIN, "--store", "sqlite:///store.db", "in"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout
        first = process.stdout.readline()
        with Once(f"sqlite:///{tmp_path}/store.db?timeout=20", group="other") as once:
            assert once.first_time("k")
            assert once.stats().groups.get("dedupe") is None  # nothing is marked before it is passed on
        rest = process.stdout.read()
    assert process.returncode == 0
    assert (first + rest).decode() == text
    assert run(tmp_path, "in").stdout == b""


def test_a_reader_that_goes_away_ends_it_quietly_and_loses_nothing(tmp_path):
    text = "".join(f"{n:0100d}\n" for n in range(20_000))
    (tmp_path / "in").write_text(text)
    shell = (
        f"'{sys.executable}' -c \"{MAIN}\" --store sqlite:///store.db in | head -n 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, capture_output=True, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (141, b"")
    assert run(tmp_path, "in").stdout.decode() == text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_it_settles_what_is_in_hand(number, tmp_path):
    command = [sys.executable, "-c", MAIN, "--store", "sqlite:///store.db", "--output", "out"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stderr=pipe, env=environment()) as process:
        assert process.stdin
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        give_up = time.monotonic() + 20
        while not (tmp_path / "out").exists() or (tmp_path / "out").read_text() != "a\nb\n":
            assert time.monotonic() < give_up
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(20)
        process.stdin.close()
    assert process.returncode == 128 + number
    assert run(tmp_path, "--output", "out", text="a\nb\nc\n").returncode == 0
    assert (tmp_path / "out").read_text() == "a\nb\nc\n"


def test_json_is_for_machines(tmp_path):
    done = run(tmp_path, "--output", "out", "--json", text="a\nb\na\n")
    found = json.loads(done.stdout)
    assert found.pop("seconds") >= 0
    assert found == {"lines": 3, "passed": 2, "duplicates": 1, "malformed": 0}
    piped = run(tmp_path, "--json", text="a\nz\n")
    assert piped.stdout == b"z\n"
    assert json.loads(piped.stderr)["passed"] == 1


def test_every_option_has_its_twin(tmp_path):
    (tmp_path / "in").write_text("1;a\n1;b\n")
    twins = {"FORMAT": "csv", "KEY": "1", "NO_HEADER": "1", "DELIMITER": ";", "OUTPUT": "out", "GROUP": "g"}
    twins |= {"WINDOW": "1h", "BATCH": "5", "REPORT": "dup"}
    env = environment(ONCEONLY_STORE="sqlite:///store.db", ONCEONLY_JSON="1")
    env |= {f"ONCEONLY_DEDUPE_{name}": value for name, value in twins.items()}
    command = [*ONCEONLY, "dedupe", "in"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=env, check=False)
    assert json.loads(done.stdout)["duplicates"] == 1, done.stderr
    assert (tmp_path / "out").read_text() == "1;a\n"
    assert len(ndjson(tmp_path / "dup")) == 1


def test_on_a_terminal_there_is_a_bar_and_in_a_pipe_there_is_none(tmp_path):
    (tmp_path / "in").write_text(many(300_000))
    options = ("in", "--output", "out", "--batch", "50000", "--store", "sqlite:///store.db")
    shown, code = run_on_terminal(
        [*ONCEONLY, "dedupe", *options], directory=tmp_path, columns=120, TERM="xterm"
    )
    assert code == 0
    assert "\x1b[" in shown
    assert "duplicates," in shown
    assert "300,000 lines: " in shown
    done = run(tmp_path, "in", "--output", "out2")
    assert b"\x1b" not in done.stderr
    assert b"\r" not in done.stderr
