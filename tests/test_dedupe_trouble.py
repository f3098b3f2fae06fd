"""``onceonly dedupe`` where things go wrong around it: files that others change, full disks, slow readers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from onceonly import Once
from tests.commands import ONCEONLY, environment, started
from tests.dedupe_helpers import run, run_killed

COMMAND = [*ONCEONLY, "dedupe", "--store", "sqlite:///store.db"]
PIPE = subprocess.PIPE


def ndjson(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def begin(directory: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return started([*COMMAND, *options], cwd=directory, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def wait_for(path: Path, text: str) -> None:
    give_up = time.monotonic() + 20
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < give_up, f"{text!r} never came"
        time.sleep(0.02)


# --- streams that never pause -----------------------------------------------------------------


def test_a_stream_that_never_pauses_is_passed_on_and_ends_when_told_to(tmp_path):
    with begin(tmp_path, "--output", "out") as process:
        assert process.stdin
        give_up, count = time.monotonic() + 20, 0
        while not (tmp_path / "out").exists() or not (tmp_path / "out").read_text():
            assert time.monotonic() < give_up
            process.stdin.write(b"%d\n" % count)
            process.stdin.flush()
            count += 1
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            assert time.monotonic() < give_up
            try:
                process.stdin.write(b"%d\n" % count)
                process.stdin.flush()
            except BrokenPipeError:
                break
            count += 1
            time.sleep(0.05)
        assert process.wait(10) == 128 + signal.SIGTERM
        process.stdin.close()


def test_what_was_read_before_a_signal_is_passed_on(tmp_path):
    seen = []
    for attempt in range(5):
        with begin(tmp_path, "--output", f"out{attempt}", "--group", str(attempt)) as process:
            assert process.stdin
            process.stdin.write(b"start\n")
            process.stdin.flush()
            wait_for(tmp_path / f"out{attempt}", "start")
            process.stdin.write(b"".join(b"%d\n" % n for n in range(1000)))
            process.stdin.flush()
            time.sleep(0.03 * attempt)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 128 + signal.SIGTERM
        passed = (tmp_path / f"out{attempt}").read_text().split()
        assert passed in (["start"], ["start", *map(str, range(1000))]), len(
            passed
        )  # none of it was read, or all
        seen.append(len(passed))
    assert max(seen) == 1001


def test_a_fifo_that_nobody_writes_to_can_be_left(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with begin(tmp_path, "fifo", "--output", "out") as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM


def test_a_fifo_and_a_pipe_of_the_shell_are_inputs(tmp_path):
    script = """
    mkfifo fifo; (printf 'a\\nb\\n' > fifo) & once fifo
    once <(printf 'b\\nc\\n')
    printf 'c\\nd\\n' | once /dev/stdin
    """
    onceonly = " ".join(f"'{word}'" for word in COMMAND)
    done = subprocess.run(
        ["bash", "-c", f'once() {{ {onceonly} "$@"; }}; {script}'],
        cwd=tmp_path,
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.stdout.decode().split() == ["a", "b", "c", "d"], done.stderr


# --- outputs that others change ---------------------------------------------------------------


@pytest.mark.parametrize("end", ["malformed", "signal"])
def test_after_a_run_that_ended_by_itself_nothing_behind_it_is_cut_off(end, tmp_path):
    if end == "malformed":
        assert run(tmp_path, "--format", "ndjson", "--output", "out", text="bad\n").returncode == 5
    else:
        with begin(tmp_path, "--output", "out") as process:
            assert process.stdin
            process.stdin.write(b"a\n")
            process.stdin.flush()
            wait_for(tmp_path / "out", "a\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 128 + signal.SIGTERM
    with (tmp_path / "out").open("a") as out:
        out.write("the work of another\n")
    before = (tmp_path / "out").read_text()
    done = run(tmp_path, "--output", "out", text="b\n")
    assert done.returncode == 2
    assert b"--append" in done.stderr
    assert (tmp_path / "out").read_text() == before


def test_another_file_at_the_path_of_one_that_a_killed_run_left_is_not_cut(tmp_path):
    run_killed(tmp_path, "before the commit", 3, "--batch", "1", "--output", "out", text="a\nb\nc\n")
    (tmp_path / "out").rename(tmp_path / "out.1")
    (tmp_path / "out").write_text("somebody else's, and longer than what was there\n")
    done = run(tmp_path, "--output", "out", text="d\n")
    assert done.returncode == 2
    assert b"is another file than the one that was written to" in done.stderr
    assert (tmp_path / "out").read_text() == "somebody else's, and longer than what was there\n"


def test_what_a_killed_run_left_is_cut_off_and_said(tmp_path):
    run_killed(tmp_path, "before the commit", 3, "--batch", "1", "--output", "out", text="aa\nbb\ncc\n")
    left = len((tmp_path / "out").read_text())
    assert left
    done = run(tmp_path, "--output", "out", text="aa\nbb\ncc\n")
    assert f"out: {left} bytes that a killed run had left were cut off".encode() in done.stderr
    assert (tmp_path / "out").read_text() == "aa\nbb\ncc\n"


@pytest.mark.parametrize("deed", ["cut", "append", "move", "remove"])
def test_an_output_that_somebody_changes_during_a_run_stays_as_they_left_it(deed, tmp_path):
    out = tmp_path / "out"
    with begin(tmp_path, "--output", "out") as process:
        assert process.stdin
        process.stdin.write(b"a\n")
        process.stdin.flush()
        wait_for(out, "a\n")
        if deed == "cut":
            os.truncate(out, 0)
        elif deed == "append":
            with out.open("a") as other:
                other.write("FOREIGN\n")
        elif deed == "move":
            out.rename(tmp_path / "out.1")
        else:
            out.unlink()
        _, told = process.communicate(b"b\n", timeout=20)
    assert process.returncode == 3
    assert b"was changed or moved by somebody else during this run" in told
    found = {path.name: path.read_text() for path in tmp_path.glob("out*")}
    assert (
        found
        == {
            "cut": {"out": ""},
            "append": {"out": "a\nFOREIGN\n"},
            "move": {"out.1": "a\n"},
            "remove": {},
        }[deed]
    )
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once:
        assert not once.seen("b")


def test_append_begins_on_a_line_of_its_own(tmp_path):
    (tmp_path / "out").write_text("mine without end")
    run(tmp_path, "--output", "out", "--append", text="a\n")
    run(tmp_path, "--output", "out", "--append", text="b\n")
    assert (tmp_path / "out").read_text() == "mine without end\na\nb\n"


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "link.db"])
def test_the_store_is_no_output(name, tmp_path):
    run(tmp_path, text="a\n")
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    done = run(tmp_path, "--output", name, "--append", text="b\n")
    assert done.returncode == 2
    assert b"are the same file" in done.stderr
    assert run(tmp_path, text="a\nb\n").stdout == b"b\n"


@pytest.mark.parametrize("commits", [2, 4, 6])
def test_commits_that_a_power_loss_takes_back_are_made_again_and_no_line_twice(commits, tmp_path):
    """The store as it was some commits ago, the output as it is: what `synchronous=normal` may leave."""
    text = "".join(f"{n}\n" for n in range(12))
    options = ("--batch", "2", "--output", "out")
    (tmp_path / "in").write_text(text)
    run_killed(tmp_path, "after the commit", commits, "in", *options)
    for name in ("store.db", "store.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / f"old-{name}")
    assert run(tmp_path, "in", *options).returncode == 0
    assert (tmp_path / "out").read_text() == text
    for path in tmp_path.glob("store.db*"):
        path.unlink()
    for name in ("store.db", "store.db-wal"):
        (tmp_path / f"old-{name}").rename(tmp_path / name)
    assert run(tmp_path, "in", *options).returncode == 0
    assert (tmp_path / "out").read_text() == text


# --- no room ----------------------------------------------------------------------------------


def limited(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that the write fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("where", ["--output", "the standard output"])
def test_a_disk_that_is_full_ends_it_with_nothing_marked_that_is_not_there(where, tmp_path):
    text = "".join(f"{n:>2000}\n" for n in range(300))
    (tmp_path / "in").write_text(text)
    run(tmp_path, text="made before the disk was full\n")
    options = ["in", "--batch", "50", *(("--output", "out") if where == "--output" else ())]
    with (tmp_path / "stdout").open("wb") as stdout:
        done = subprocess.run(
            [*COMMAND, *options],
            cwd=tmp_path,
            stdout=stdout,
            stderr=PIPE,
            env=environment(),
            preexec_fn=lambda: limited(450_000),
            check=False,
        )
    assert done.returncode == 3
    assert b"File too large" in done.stderr
    assert b"Traceback" not in done.stderr
    out = tmp_path / ("out" if where == "--output" else "stdout")
    first = out.read_text()
    assert text.startswith(first)
    assert first.endswith("\n")
    again = run(tmp_path, *options)
    assert (out.read_text() if where == "--output" else first + again.stdout.decode()) == text


@pytest.mark.parametrize("redirect", ["> /dev/full", ">&-"])
def test_a_standard_output_that_takes_nothing_is_told(redirect, tmp_path):
    shell = " ".join(f"'{word}'" for word in COMMAND) + f" in {redirect}"
    (tmp_path / "in").write_text("a\n")
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 3
    assert b"the standard output: " in done.stderr
    assert b"Traceback" not in done.stderr
    assert run(tmp_path, "in").stdout == b"a\n"


def test_a_kill_tears_no_line_of_a_pipe(tmp_path):
    lines = [f"{n:05d} {'x' * (n % 300)}" for n in range(20_000)]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    with begin(tmp_path, "in") as process:
        assert process.stdout
        seen = process.stdout.read(100_000)
        process.kill()
        seen += process.stdout.read()
        process.wait(10)
    assert seen.endswith(b"\n")
    again = run(tmp_path, "in").stdout
    passed = (seen + again).decode().splitlines()
    assert set(passed) == set(lines)


def test_two_with_slow_readers_each_say_what_they_passed_on_themselves(tmp_path):
    (tmp_path / "in").write_text("".join(f"{n:>98}\n" for n in range(3000)))
    with begin(tmp_path, "in", "--json") as one, begin(tmp_path, "in", "--json") as two:
        time.sleep(2.5)  # neither is read for longer than the lock is held for one
        shown = [process.communicate(timeout=30) for process in (one, two)]
    for out, told in shown:
        counts = json.loads(told)
        assert counts["passed"] == out.count(b"\n")
        assert counts["passed"] + counts["duplicates"] == 3000
    assert sum(out.count(b"\n") for out, _ in shown) >= 3000


# --- input that is not what it seems ------------------------------------------------------------


def test_what_has_been_compressed_is_refused_with_a_hint(tmp_path):
    subprocess.run(["bash", "-c", "printf 'a\\n' | gzip > in.gz"], cwd=tmp_path, check=True)
    done = run(tmp_path, "in.gz")
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"gzip -dc" in done.stderr


def test_a_mark_at_the_start_of_a_file_is_no_part_of_its_first_record(tmp_path):
    (tmp_path / "a.ndjson").write_text('\ufeff{"id": 1}\n')
    (tmp_path / "b.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    assert run(tmp_path, "a.ndjson", "b.ndjson").stdout == b'{"id": 1}\n{"id": 2}\n'
    (tmp_path / "a.csv").write_text('\ufeff"id",n\r\n1,1\r\n')
    (tmp_path / "b.csv").write_text("id,n\n1,2\n2,2\n")
    assert run(tmp_path, "a.csv", "b.csv", "--key", "id").stdout == b'"id",n\r\n1,1\r\n2,2\n'


def test_what_comes_before_a_line_without_end_is_passed_on(tmp_path):
    done = run(tmp_path, text=b"a\nb\n" + b"x" * (17 * 2**20))
    assert (done.returncode, done.stdout) == (5, b"a\nb\n")
    assert b"-:3: this line has no end within 16 MiB" in done.stderr


def test_files_of_different_formats_or_columns_are_not_mixed(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"id": 1}\n')
    (tmp_path / "a.csv").write_text("id,n\n1,2\n")
    (tmp_path / "b.csv").write_text("n,id\n3,4\n")
    mixed = run(tmp_path, "a.ndjson", "a.csv")
    assert (mixed.returncode, mixed.stdout) == (2, b"")
    assert b"more than one format" in mixed.stderr
    other = run(tmp_path, "a.csv", "b.csv", "--output", "out")
    assert other.returncode == 5
    assert b"has other columns than the file before it" in other.stderr
    assert (tmp_path / "out").read_text() == "id,n\n1,2\n"
    later = run(tmp_path, "b.csv", "--output", "out")
    assert later.returncode == 5
    assert b"has other columns than this input" in later.stderr
    assert (tmp_path / "out").read_text() == "id,n\n1,2\n"


def test_records_of_other_columns_are_not_equal(tmp_path):
    assert run(tmp_path, "--format", "csv", text="a,b\n1,2\n").stdout == b"a,b\n1,2\n"
    assert run(tmp_path, "--format", "csv", text="b,a\n1,2\n").stdout == b"b,a\n1,2\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [('{"a":1,"a":2}', '{"a":2}'), ('{"id":1234567890123456789}', '{"id":1234567890123456788}')],
    ids=["the same name twice", "integers beyond 2^53"],
)
def test_records_that_only_look_equal_to_a_parser_are_told_apart(one, other, tmp_path):
    run(tmp_path, "--format", "ndjson", "--errors", "err", text=f"{one}\n")
    assert run(tmp_path, "--format", "ndjson", text=f"{other}\n").stdout.decode() == f"{other}\n"


def test_large_integers_are_no_error(tmp_path):
    text = '{"id":1234567890123456789}\n{"id":1234567890123456789}\n{"id":"1234567890123456789"}\n'
    done = run(tmp_path, "--format", "ndjson", text=text)
    assert done.stdout.decode() == '{"id":1234567890123456789}\n{"id":"1234567890123456789"}\n'


def test_what_is_not_utf8_is_set_aside_whole(tmp_path):
    line = b'{"id":1,"x":"\xff"}'
    done = run(tmp_path, "--format", "ndjson", "--key", "$.id", "--errors", "err", text=line + b"\n")
    assert done.stdout == b""
    (error,) = ndjson(tmp_path / "err")
    assert error["error"] == "not UTF-8"
    restored = subprocess.run(
        ["base64", "-d"], input=str(error["text_base64"]).encode(), capture_output=True, check=True
    )
    assert restored.stdout == line


def test_a_quote_that_is_never_closed_takes_a_thousand_lines_at_the_most_and_all_are_kept(tmp_path):
    rows = [f"{n},x" for n in range(5000)]
    rows[50] = '50,"open'
    (tmp_path / "in.csv").write_text("id,n\n" + "\n".join(rows) + "\n")
    done = run(tmp_path, "in.csv", "--key", "id", "--output", "out", "--errors", "err")
    (error,) = ndjson(tmp_path / "err")
    kept = str(error["text"]).split("\n")
    assert kept == rows[50:1050]
    assert (tmp_path / "out").read_text().split() == ["id,n", *rows[:50], *rows[1050:]]
    assert b"4,000 passed on" in done.stderr
    assert b"1,000 malformed" in done.stderr


@pytest.mark.parametrize("batch", ["1", "7", "100000"])
def test_how_long_a_record_may_be_does_not_depend_on_the_batch(batch, tmp_path):
    fits = 'id,n\n1,"' + "\n" * 999 + '"\n2,b\n'
    assert run(tmp_path, "--format", "csv", "--batch", batch, text=fits).stdout.decode() == fits
    too_long = 'id,n\n1,"' + "\n" * 1000 + '"\n2,b\n'
    done = run(tmp_path, "--format", "csv", "--batch", batch, "--group", "g", text=too_long)
    assert done.returncode == 5
    assert b"-:2: not CSV: a quote is opened and not closed within 1000 lines" in done.stderr


def test_a_long_field_is_no_error(tmp_path):
    text = "id,n\n1," + "x" * 500_000 + "\n"
    assert run(tmp_path, "--format", "csv", text=text).stdout.decode() == text


def test_a_header_that_is_malformed_ends_it_whatever_is_set_aside(tmp_path):
    done = run(tmp_path, "--format", "csv", "--errors", "err", text='"id"x,n\n1,a\n')
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"line 1 should name the columns" in done.stderr


def test_a_row_that_is_too_short_is_malformed_also_without_a_header(tmp_path):
    options = ("--format", "csv", "--no-header", "--key", "2", "--errors", "err")
    done = run(tmp_path, *options, text="1,a\n2\n3,c\n")
    assert (done.returncode, done.stdout) == (0, b"1,a\n3,c\n")
    assert ndjson(tmp_path / "err")[0]["error"] == "1 fields, and there are 2 columns"


# --- what others keep in the store --------------------------------------------------------------


@pytest.mark.parametrize("result", [[1, 2], [1, 7, "abc"], [10**30, 2], {"d1": 1}, "d1", 5, None])
def test_results_of_the_library_are_not_taken_for_places(result, tmp_path):
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once:
        once.process(lambda _: result, {}, key="7")
    options = ("--format", "ndjson", "--key", "$.id", "--fingerprint", "n", "--report", "dup")
    done = run(tmp_path, *options, text='{"id": 7, "n": 1}\n')
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert ndjson(tmp_path / "dup") == [{"source": "-", "line": 1, "key": "7", "first": None}]


def test_fingerprints_of_other_fields_are_not_compared(tmp_path):
    options, text = ("--format", "ndjson", "--key", "$.id"), '{"id": 7, "a": 1, "b": 2}\n'
    run(tmp_path, *options, "--fingerprint", "a", text=text)
    done = run(tmp_path, *options, "--fingerprint", "a,b", text=text)
    assert (done.returncode, done.stdout) == (0, b"")
    assert run(tmp_path, *options, "--fingerprint", "a", text=text.replace("1", "3")).returncode == 5


def test_the_report_tells_a_line_that_was_fed_again_from_a_duplicate(tmp_path):
    (tmp_path / "in").write_text("a\nb\na\n")
    run(tmp_path, "in")
    run(tmp_path, "in", "--report", "dup")
    found = [(each["line"], each["first"]["line"], each.get("again")) for each in ndjson(tmp_path / "dup")]  # type: ignore[index]
    assert found == [(1, 1, True), (2, 2, True), (3, 1, None)]


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("in.ndjson", "--key", "id"), "--key '$.id'"),
        (("in.ndjson", "--fingerprint", "a,"), "--fingerprint 'a,'"),
        (("in.ndjson", "--fingerprint", ""), "--fingerprint ''"),
        (("in.csv", "--key", "1"), "--no-header"),
        (("in.ndjson", "--delimiter", ";"), "are for CSV"),
        (("in.ndjson", "--no-header"), "are for CSV"),
        (("in.ndjson", "--append"), "--append is for"),
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_meant_are_refused_with_what_to_write(options, said, tmp_path):
    (tmp_path / "in.ndjson").write_text('{"id": 1}\n')
    (tmp_path / "in.csv").write_text("id,n\n1,2\n")
    done = run(tmp_path, *options)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


def test_names_with_commas_are_quoted_and_tabs_are_guessed(tmp_path):
    (tmp_path / "in.tsv").write_text("a,b\tc\n1\t2\n1\t3\n2\t3\n")
    assert run(tmp_path, "in.tsv", "--fingerprint", '"a,b"').stdout == b"a,b\tc\n1\t2\n2\t3\n"


def test_a_run_that_fails_says_what_it_did(tmp_path):
    done = run(tmp_path, "--format", "ndjson", "--json", text='{"id": 1}\n{"id": 1}\nbad\n')
    assert done.returncode == 5
    first, error = done.stderr.decode().splitlines()
    assert json.loads(first)["passed"] == 1
    assert json.loads(first)["duplicates"] == 1
    assert error.startswith("Error: -:3: ")


def test_a_live_claim_is_told_in_words_of_the_command_line(tmp_path):
    with Once(f"sqlite:///{tmp_path}/store.db", group="dedupe") as once, once.claim("b"):
        done = run(tmp_path, "--batch", "1", text="a\nb\n")
    assert (done.returncode, done.stdout) == (4, b"a\n")
    assert b"'b'" in done.stderr
    assert b"run this again in " in done.stderr
    assert b"roll back" not in done.stderr
