"""The demo, run as a user runs it, and its judge on ledgers written by hand."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from onceonly.cli.demo.judge import OVERLAP, Effect, judge
from onceonly.cli.demo.plan import LATE, Kill, Payment, Plan, Step, make_plan
from tests.commands import ONCEONLY, environment, run_on_terminal

COMMAND = [*ONCEONLY, "demo"]
KEYS = ["consumer", "delivered", "unique", "effects", "lost", "doubled", "kills"]
NAMES = ["textbook", "onceonly-leased", "onceonly-transactional"]
NAMES_SHOWN = tuple(f" {name}" for name in NAMES)
SMALL = ["--messages", "50", "--seed", "3"]


def run(*options, **env):
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, env=environment(**env), timeout=90, check=False
    )


# --- the command ------------------------------------------------------------------------------


def test_json_shows_what_the_textbook_loses_and_doubles_and_onceonly_does_not():
    done = run("--json", "--messages", "300", "--seed", "7")
    assert (done.returncode, done.stderr) == (0, "")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(report) for report in reports] == [KEYS] * 3
    assert [report["consumer"] for report in reports] == NAMES
    textbook, leased, transactional = reports
    assert textbook["lost"] > 0
    assert textbook["doubled"] > 0
    assert leased["lost"] == 0
    assert (transactional["lost"], transactional["doubled"]) == (0, 0)
    plan = make_plan(300, 7)
    for report in reports:
        assert report["unique"] == 300
        assert report["kills"] == len(plan.kills)
        assert report["delivered"] >= plan.copies + len(plan.kills)


def test_in_a_pipe_the_table_is_plain_text_and_the_work_files_can_be_kept(tmp_path):
    kept = tmp_path / "kept"
    done = run(*SMALL, "--keep", str(kept))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    for name in NAMES:  # whole, in both tables
        assert sum(line.strip().startswith(name + " ") for line in done.stdout.splitlines()) == 2
    assert "killed between effect and completion" in done.stdout
    assert "UNEXPLAINED" not in done.stdout
    met = ", ".join(f"{name} 1" for name in NAMES)
    assert f"slow handlers that met a copy past their lease: {met}\n" in done.stdout
    assert sorted(path.name for path in kept.iterdir()) == sorted(NAMES)
    again = run(*SMALL, "--keep", str(kept))
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_on_a_terminal_there_is_progress_and_temporary_files_go_away(tmp_path):
    shown, code = run_on_terminal([*COMMAND, *SMALL], TERM="xterm", TMPDIR=str(tmp_path))
    assert code == 0
    assert "\x1b[" in shown
    copies = make_plan(50, 3).copies
    assert shown.count(f"{copies}/{copies}") >= len(NAMES)
    assert list(tmp_path.iterdir()) == []


def test_in_a_narrow_terminal_no_number_is_left_out():
    done = run(*SMALL, COLUMNS="40")
    header, *rows = [
        line for line in done.stdout.splitlines() if line.startswith((" consumer", *NAMES_SHOWN))
    ]
    assert header.split() == ["consumer", "delivered", "unique", "effects", "lost", "doubled", "fired"]
    assert [len(row.split()) for row in rows] == [7] * 3 + [4] * 3
    assert "…" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to it alone", "to its workers too, as Ctrl-C"])
def test_a_signal_ends_it_without_leaving_anything_behind(send, number, tmp_path):
    env = environment(TMPDIR=str(tmp_path))
    with subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, env=env, start_new_session=True) as process:
        give_up = time.monotonic() + 30
        while not list(tmp_path.glob("onceonly-demo-*/*/*")) and time.monotonic() < give_up:
            time.sleep(0.05)
        send(process.pid, number)
        assert process.wait(30) == 128 + number
    assert list(tmp_path.glob("onceonly-demo-*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_signal_that_comes_where_python_ignores_what_is_raised_ends_it_too():
    """After a fork Python runs callbacks and only prints what they raise: CI met a signal there."""
    in_callback = "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))"
    code = f"import os, signal; {in_callback}; {COMMAND[-2]}"
    done = subprocess.run(
        [sys.executable, "-c", code, COMMAND[-1]],
        capture_output=True,
        env=environment(),
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")


def test_a_signal_that_is_ignored_stays_ignored():
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {COMMAND[-2]}"  # as nohup does
    command = [sys.executable, "-c", code, COMMAND[-1], *SMALL, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout
        assert process.stdout.readline()  # under way
        process.send_signal(signal.SIGHUP)
        assert process.stdout.read().count(b"\n") == len(NAMES) - 1
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--messages", "49"], "--messages"),
        (["--messages", "many"], "--messages"),
        (["--workers", "1"], "2<=x<=16"),  # nobody could receive the copy of a slow message
        (["--workers", "17"], "--workers"),
        (["--seed", "x"], "--seed"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_refused_with_2_and_named(options, says):
    done = run(*options)
    assert done.returncode == 2
    assert says in done.stderr


def test_options_come_from_the_environment_too():
    assert "ONCEONLY_DEMO_WORKERS" not in os.environ
    done = run(ONCEONLY_DEMO_WORKERS="0")
    assert done.returncode == 2
    assert "--workers" in done.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_cli_extra_it_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from onceonly.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "onceonly[cli]" in done.stderr


def test_the_console_script_stays_a_function_after_it_ran():
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from onceonly.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "from onceonly.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("onceonly, version") == 2


# --- the command on a broken library: it must fail --------------------------------------------

LEASED_ONLY = """
from onceonly.cli import main
from onceonly.cli.demo import command, consumers, faults
from onceonly.core.renewal import Keeper
from onceonly.stores.sqlite import SqliteStore

command.CONSUMERS = (consumers.Leased,)
{change}
main()
"""


def run_leased(change, *options):
    code = LEASED_ONLY.format(change=change)
    return subprocess.run(
        [sys.executable, "-c", code, "demo", *SMALL, *options],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=90,
        check=False,
    )


def test_the_leased_consumer_alone_passes():
    done = run_leased("", "--workers", "2")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_renewal_the_copy_of_a_slow_message_is_an_unexplained_double():
    done = run_leased("Keeper.watch = lambda self, claim: None", "--workers", "2")
    assert done.returncode == 1
    slow = [payment.id for payment in make_plan(50, 3).payments.values() if payment.slow]
    assert [line for line in done.stdout.splitlines() if "doubled, UNEXPLAINED" in line] == [
        f"onceonly-leased: {message} doubled, UNEXPLAINED" for message in slow
    ]


def test_completions_that_write_nothing_are_found_out():
    done = run_leased("SqliteStore.complete = lambda self, completions: [True] * len(completions)")
    assert done.returncode == 1
    assert "BROKEN PROMISES" in done.stdout
    assert done.stdout.count("doubled, UNEXPLAINED") > 10


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("faults._PATIENCE = 0; faults.Faults.received = lambda self, message: None", OVERLAP),
        ("consumers._KillingStore.claim = SqliteStore.claim", "kill:claimed"),
    ],
)
def test_a_planned_fault_that_never_fired_fails_the_demo(change, kind):
    done = run_leased(change)
    assert done.returncode == 1
    assert done.stderr == f"Error: onceonly-leased: never fired: {kind}\n"
    assert "onceonly lost none" not in done.stdout


# --- the plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [50, 200, 2000])
def test_a_plan_follows_from_its_seed_and_kills_at_every_step(messages):
    plan = make_plan(messages, 7)
    assert plan == make_plan(messages, 7)
    assert plan != make_plan(messages, 8)
    kinds = Counter(plan.kills.values())
    assert set(kinds) == {Kill(step, delay) for step in Step for delay in (0.0, LATE)}
    assert max(kinds.values()) - min(kinds.values()) <= 1
    slow = {payment.id for payment in plan.payments.values() if payment.slow}
    assert slow
    assert not slow & plan.kills.keys()


def test_half_of_the_payments_come_twice_and_some_copies_at_the_same_time():
    plan = make_plan(2000, 7)
    assert set(plan.order) == plan.payments.keys()
    assert len(plan.order) == 3000
    assert max(Counter(plan.order).values()) == 2
    side_by_side = sum(a == b for a, b in zip(plan.order, plan.order[1:], strict=False))
    assert 200 < side_by_side < 500


# --- the judge --------------------------------------------------------------------------------

PLAN = Plan({i: Payment(i, "acct-01", 100) for i in "abc"}, tuple("abc"), {})
DOUBLED_A = [Effect("a", 100, 1), Effect("a", 100, 2), Effect("b", 100, 2)]


def fault(message, pid, what):
    return {"message": message, "pid": pid, "what": what}


def judged(consumer, effects, faults=()):
    return judge(consumer, PLAN, 5, effects, list(faults))


def test_the_judge_counts_lost_and_doubled_and_the_money():
    report = judged("textbook", [*DOUBLED_A, Effect("b", 100, 3)])
    assert (report.effects, report.lost, report.doubled, report.kills) == (4, 1, 2, 0)
    assert (report.total, report.expected) == (400, 300)
    assert report.broken_promises == []  # it made none


KILLED = fault("a", 1, "kill:effect-done")


def test_a_repeat_is_explained_by_the_death_of_the_worker_that_wrote_before_it():
    report = judged("onceonly-leased", [*DOUBLED_A, Effect("c", 100, 3)], [KILLED])
    assert report.causes == {"killed between effect and completion": 1}
    assert report.unexplained == []
    assert report.broken_promises == []


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [fault("a", 1, "kill:claimed")],  # it died, but not after the effect
        [fault("b", 1, "kill:effect-done")],  # another message
        [fault("a", 9, "kill:effect-done")],  # a worker that wrote nothing
        [fault("a", 2, "kill:effect-done")],  # the one that wrote last: it should not have
        [fault("a", 1, "LeaseLost('...')")],  # nobody stopped it, so it had to keep its lease
        [fault("a", 1, "NotRecorded('...')")],  # nobody took its store away
        [fault("a", 1, OVERLAP)],
    ],
)
def test_any_other_repeat_is_unexplained_and_breaks_the_promise(faults):
    report = judged("onceonly-leased", [*DOUBLED_A, Effect("c", 100, 3)], faults)
    assert report.causes == {}
    assert report.unexplained == ["a"]
    assert report.broken_promises == ["a doubled, UNEXPLAINED"]


@pytest.mark.parametrize("pids", [(1, 2, 3), (1, 1, 2), (1, 1, 1, 1)])
def test_one_kill_explains_one_repeat_and_not_two(pids):
    effects = [Effect("a", 100, pid) for pid in pids]
    report = judged("onceonly-leased", effects, [KILLED])
    assert report.causes == {"killed between effect and completion": 1}
    assert report.unexplained == ["a"]


def test_two_kills_explain_two_repeats():
    effects = [Effect("a", 100, pid) for pid in (1, 2, 3)]
    report = judged("onceonly-leased", effects, [KILLED, fault("a", 2, "kill:effect-done")])
    assert report.causes == {"killed between effect and completion": 2}
    assert report.unexplained == []


def test_the_judge_names_the_planned_faults_that_never_fired():
    payments = {"a": Payment("a", "acct-01", 100), "b": Payment("b", "acct-01", 100, slow=True)}
    plan = Plan(payments, ("a", "b"), {"a": Kill(Step.CLAIMED, 0.0)})
    fired = [fault("a", 1, "kill:claimed"), fault("b", 2, OVERLAP)]
    assert judge("textbook", plan, 4, [], []).silent == [OVERLAP, "kill:claimed"]
    assert judge("textbook", plan, 4, [], fired[:1]).silent == [OVERLAP]
    assert judge("textbook", plan, 4, [], fired).silent == []
    assert judge("textbook", plan, 4, [], fired).overlaps == 1


def test_lost_breaks_both_modes_and_doubled_always_breaks_the_transactional_one():
    assert judged("onceonly-leased", DOUBLED_A, [KILLED]).broken_promises == ["1 lost"]
    assert judged("onceonly-transactional", DOUBLED_A, [KILLED]).broken_promises == ["1 lost", "1 doubled"]


def test_an_effect_nobody_asked_for_is_no_success():
    with pytest.raises(ValueError, match="nobody sent"):
        judged("textbook", [Effect("z", 100, 1)])
