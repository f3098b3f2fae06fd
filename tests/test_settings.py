"""Options: defaults, ``ONCEONLY_*`` twins, who wins, and errors that name the field at fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceonly import AsyncOnce, ConfigurationError, Once, OnceonlyError
from onceonly.codecs import JsonCodec
from onceonly.settings import Options, Policy, resolve, store_and_group

HOUR, DAY = 3600.0, 86400.0


def policy(environ: Any = None, **options: Any) -> Policy:
    return resolve("billing", options, environ or {})  # type: ignore[arg-type]


def text_of(environ: Any = None, **options: Any) -> str:
    """The message with which these settings are refused."""
    with pytest.raises(ConfigurationError) as refused:
        policy(environ, **options)
    return str(refused.value)


# --- defaults ---------------------------------------------------------------------------------


def test_the_defaults_are_safe():
    found = policy()
    assert (found.window, found.lease) == (DAY, 30.0)
    assert found.fail_open is False
    assert found.wait_timeout == 0.0
    assert found.on_orphan == "retry"
    assert (found.max_attempts, found.retry_delay) == (None, 0.0)
    assert (found.keep_result, found.max_result_bytes) == (True, 1_048_576)
    assert isinstance(found.codec, JsonCodec)
    assert [found.scope, found.type, found.fingerprint, found.store_failure, found.on_event] == [None] * 5


def test_every_option_has_a_place_in_the_policy():
    renamed = {"on_in_flight": "wait_timeout", "on_store_error": "fail_open"}
    fields = set(Policy.__dataclass_fields__)
    assert {renamed.get(name, name) for name in Options.__annotations__} | {"group", "overrides"} == fields


@pytest.mark.parametrize(
    ("window", "lease"),
    [("24h", 30.0), ("30s", 30.0), ("29s", 29.0), (0.5, 0.5), (None, 30.0), ("analytics", 30.0)],
)
def test_the_default_lease_is_30_seconds_but_never_longer_than_the_window(window, lease):
    assert policy(window=window).lease == lease
    environ = {"ONCEONLY_WINDOW": "none" if window is None else str(window)}
    if not isinstance(window, float):
        assert policy(environ).lease == lease


# --- durations --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["window", "lease", "wait_timeout", "retry_delay"])
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("30s", 30.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("1.5m", 90.0),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        (timedelta(minutes=2), 120.0),
        (45, 45.0),
        (0.25, 0.25),
    ],
    ids=str,
)
def test_durations_are_texts_timedeltas_or_seconds(name, given, seconds):
    options = {"window": "2w", "on_in_flight": "wait", name: given}
    found = policy(**options) if name != "window" else policy(**{**options, "lease": 0.01})
    assert getattr(found, name) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("preset", "seconds"),
    [("payment", DAY), ("order", 4 * HOUR), ("notification", 900.0), ("analytics", 300.0)],
)
def test_a_window_can_be_a_preset(preset, seconds):
    assert policy(window=preset).window == seconds
    assert policy({"ONCEONLY_WINDOW": preset}).window == seconds


@pytest.mark.parametrize("name", ["lease", "wait_timeout", "retry_delay"])
def test_only_windows_have_presets(name):
    assert name in text_of(on_in_flight="wait", **{name: "payment"})


@pytest.mark.parametrize("name", ["window", "lease", "wait_timeout", "retry_delay"])
@pytest.mark.parametrize(
    "bad",
    [
        "soon",
        "30",
        "1h 30m",
        "-1s",
        "h",
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        "101w" * 60,
        True,
        [30],
        b"1h",
    ],
    ids=str,
)
def test_what_is_not_a_duration_is_refused_by_name(name, bad):
    message = text_of(**{"window": "52w", "on_in_flight": "wait", name: bad})
    assert message.startswith(name)


@pytest.mark.parametrize("name", ["window", "lease", "wait_timeout"])
@pytest.mark.parametrize("bad", [0, "0s", "", timedelta(0)], ids=repr)
def test_a_duration_of_nothing_is_refused_by_name(name, bad):
    assert text_of(**{"on_in_flight": "wait", name: bad}).startswith(name)


@pytest.mark.parametrize("none", [None, 0, 0.0], ids=repr)
def test_no_retry_delay_is_no_delay(none):
    assert policy(retry_delay=none).retry_delay == 0.0


@pytest.mark.parametrize("bad", ["", False], ids=repr)
def test_a_retry_delay_that_is_not_a_duration_is_refused_even_if_falsy(bad):
    assert "retry_delay" in text_of(retry_delay=bad)


def test_a_bad_wait_timeout_is_refused_also_while_nobody_waits():
    assert "wait_timeout" in text_of(wait_timeout="soon", on_in_flight="reject")


# --- lease and window -------------------------------------------------------------------------


def test_a_lease_longer_than_its_window_is_refused_and_names_both():
    message = text_of(lease="2h", window="1h")
    assert "lease='2h'" in message
    assert "window='1h'" in message


@pytest.mark.parametrize("environ", [{"ONCEONLY_LEASE": "2h"}, {"ONCEONLY_WINDOW": "1h"}])
def test_lease_and_window_are_compared_wherever_they_come_from(environ):
    options = {"window": "1h"} if "ONCEONLY_LEASE" in environ else {"lease": "2h"}
    message = text_of(environ, **options)
    assert "lease='2h'" in message
    assert "window='1h'" in message


def test_a_lease_as_long_as_its_window_is_fine():
    assert policy(lease="1h", window=3600).lease == HOUR


def test_without_dedup_any_lease_is_fine():
    assert policy(window=None, lease="48h").window is None


# --- choices, numbers, functions, texts -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"on_store_error": "open"}, "fail_open", True),
        ({"on_store_error": "closed"}, "fail_open", False),
        ({"on_in_flight": "wait"}, "wait_timeout", 30.0),
        ({"on_in_flight": "wait", "wait_timeout": "5s"}, "wait_timeout", 5.0),
        ({"on_in_flight": "reject", "wait_timeout": "5s"}, "wait_timeout", 0.0),
        ({"on_orphan": "quarantine"}, "on_orphan", "quarantine"),
        ({"on_orphan": bool}, "on_orphan", bool),
        ({"max_attempts": 1}, "max_attempts", 1),
        ({"max_result_bytes": 1}, "max_result_bytes", 1),
        ({"keep_result": False}, "keep_result", False),
        ({"scope": "tenant-1"}, "scope", "tenant-1"),
        ({"scope": str}, "scope", str),
        ({"type": "order"}, "type", "order"),
        ({"fingerprint": repr}, "fingerprint", repr),
        ({"store_failure": bool}, "store_failure", bool),
        ({"on_event": print}, "on_event", print),
    ],
    ids=str,
)
def test_an_option_reaches_the_policy(options, field, value):
    assert getattr(policy(**options), field) == value


BAD_VALUES: dict[str, list[Any]] = {
    "on_in_flight": ["Wait", "", None, 1],
    "on_store_error": ["OPEN", "ignore", None, True],
    "on_orphan": ["skip", "", None, 0],
    "max_attempts": [0, -1, 1.5, "3", True],
    "max_result_bytes": [0, -1, 1.5, "3", True, None],
    "fingerprint": ["$.id", 1],
    "store_failure": [True, ValueError("x")],
    "on_event": ["print", []],
    "scope": ["", 7, b"tenant", "x" * 513],
    "type": ["", 7, b"order", "x" * 513],
}


@pytest.mark.parametrize(
    ("name", "bad"), [(name, bad) for name, values in BAD_VALUES.items() for bad in values], ids=str
)
def test_a_bad_value_is_refused_and_the_message_names_the_option(name, bad):
    assert text_of(**{name: bad}).startswith(name)


def test_a_probe_is_a_function_not_the_words():
    assert "on_orphan" in text_of(on_orphan="a probe")


@pytest.mark.parametrize("bad", ["false", None, 0], ids=repr)
def test_keep_result_is_true_or_false(bad):
    assert "keep_result" in text_of(keep_result=bad)


def test_what_cannot_encode_and_decode_is_no_codec():
    assert "codec" in text_of(codec="json")


def test_a_codec_of_ones_own_is_used():
    class Upper(JsonCodec):
        pass

    own = Upper()
    assert policy(codec=own).codec is own


@pytest.mark.parametrize("unknown", ["Windows", "Lease", "retries", "group"])
def test_an_unknown_option_is_refused_with_the_known_ones(unknown):
    message = text_of(**{unknown: 1})
    assert f"unknown option {unknown}" in message
    assert all(name in message for name in Options.__annotations__)


@pytest.mark.parametrize("engine", [Once, AsyncOnce])
def test_an_engine_refuses_bad_options_before_it_opens_its_store(engine, tmp_path):
    path = tmp_path / "never.db"
    with pytest.raises(ConfigurationError, match="lease"):
        engine(f"sqlite:///{path}", group="billing", lease="soon")
    with pytest.raises(ConfigurationError, match="unknown option retries"):
        engine(f"sqlite:///{path}", group="billing", retries=3)
    assert not path.exists()


def test_a_handlers_options_are_checked_when_it_is_decorated():
    with Once("memory://", group="billing", window="1m") as once:
        with pytest.raises(ConfigurationError, match="lease='2m' is longer than window='1m'"):
            once.handler(key="$.id", lease="2m")
        with pytest.raises(ConfigurationError, match="unknown option retries"):
            once.handler(key="$.id", retries=3)  # type: ignore[call-arg]


# --- the environment --------------------------------------------------------------------------

TWINS: list[tuple[str, str, str, object]] = [
    ("ONCEONLY_WINDOW", "1h", "window", HOUR),
    ("ONCEONLY_WINDOW", "order", "window", 4 * HOUR),
    ("ONCEONLY_WINDOW", "none", "window", None),
    ("ONCEONLY_LEASE", "5s", "lease", 5.0),
    ("ONCEONLY_ON_IN_FLIGHT", "wait", "wait_timeout", 30.0),
    ("ONCEONLY_ON_STORE_ERROR", "open", "fail_open", True),
    ("ONCEONLY_ON_ORPHAN", "quarantine", "on_orphan", "quarantine"),
    ("ONCEONLY_RETRY_DELAY", "2s", "retry_delay", 2.0),
    ("ONCEONLY_RETRY_DELAY", "None", "retry_delay", 0.0),
    ("ONCEONLY_KEEP_RESULT", "false", "keep_result", False),
    ("ONCEONLY_KEEP_RESULT", "TRUE", "keep_result", True),
    ("ONCEONLY_MAX_ATTEMPTS", "3", "max_attempts", 3),
    ("ONCEONLY_MAX_ATTEMPTS", "none", "max_attempts", None),
    ("ONCEONLY_MAX_RESULT_BYTES", "100", "max_result_bytes", 100),
]


@pytest.mark.parametrize(("variable", "text", "field", "value"), TWINS)
def test_an_option_has_its_twin_in_the_environment(variable, text, field, value):
    assert getattr(policy({variable: text}), field) == value


def test_the_wait_timeout_comes_from_the_environment_too():
    environ = {"ONCEONLY_ON_IN_FLIGHT": "wait", "ONCEONLY_WAIT_TIMEOUT": "3s"}
    assert policy(environ).wait_timeout == 3.0


def test_every_option_that_a_text_can_say_has_a_twin():
    functions_and_texts_of_a_message = {"scope", "type", "fingerprint", "store_failure", "codec", "on_event"}
    windows_of_types = {"windows"}
    twins = {variable.removeprefix("ONCEONLY_").lower() for variable, *_ in TWINS} | {"wait_timeout"}
    assert twins == set(Options.__annotations__) - functions_and_texts_of_a_message - windows_of_types


@pytest.mark.parametrize(
    ("variable", "given", "field", "value"),
    [
        ("ONCEONLY_WINDOW", {"window": "2h"}, "window", 2 * HOUR),
        ("ONCEONLY_WINDOW", {"window": None}, "window", None),
        ("ONCEONLY_LEASE", {"lease": 7}, "lease", 7.0),
        ("ONCEONLY_ON_IN_FLIGHT", {"on_in_flight": "reject"}, "wait_timeout", 0.0),
        ("ONCEONLY_ON_STORE_ERROR", {"on_store_error": "closed"}, "fail_open", False),
        ("ONCEONLY_ON_ORPHAN", {"on_orphan": "retry"}, "on_orphan", "retry"),
        ("ONCEONLY_RETRY_DELAY", {"retry_delay": None}, "retry_delay", 0.0),
        ("ONCEONLY_KEEP_RESULT", {"keep_result": True}, "keep_result", True),
        ("ONCEONLY_MAX_ATTEMPTS", {"max_attempts": None}, "max_attempts", None),
        ("ONCEONLY_MAX_RESULT_BYTES", {"max_result_bytes": 7}, "max_result_bytes", 7),
    ],
    ids=str,
)
def test_code_wins_over_the_environment(variable, given, field, value):
    text = next(text for name, text, *_ in TWINS if name == variable)
    assert getattr(policy({variable: text}, **given), field) == value


@pytest.mark.parametrize("given", [{}, {"window": "24h"}], ids=["environment", "code"])
def test_a_text_in_the_environment_that_code_overrides_is_not_even_parsed_as_a_duration(given):
    environ = {"ONCEONLY_WINDOW": "nonsense"}
    if given:
        assert policy(environ, **given).window == DAY
    else:
        assert "ONCEONLY_WINDOW='nonsense'" in text_of(environ)


@pytest.mark.parametrize(
    ("variable", "bad"),
    [
        *[("ONCEONLY_KEEP_RESULT", bad) for bad in ("yes", "1", "")],
        *[("ONCEONLY_MAX_ATTEMPTS", bad) for bad in ("three", "0", "-1", "1.5", "")],
        *[("ONCEONLY_MAX_RESULT_BYTES", bad) for bad in ("1MB", "0", "none", "")],
        *[("ONCEONLY_WINDOW", bad) for bad in ("24", "0s", "")],
        *[("ONCEONLY_LEASE", bad) for bad in ("30", "none", "", "25h")],
        *[("ONCEONLY_ON_IN_FLIGHT", bad) for bad in ("queue", "none", "")],
        *[("ONCEONLY_ON_STORE_ERROR", bad) for bad in ("Open", "none", "")],
        *[("ONCEONLY_ON_ORPHAN", bad) for bad in ("builtins.bool", "none", "")],
        ("ONCEONLY_RETRY_DELAY", "a while"),
    ],
    ids=str,
)
def test_a_bad_text_in_the_environment_is_refused_by_name(variable, bad):
    name = variable.removeprefix("ONCEONLY_").lower()
    assert name in text_of({variable: bad}).lower()


@pytest.mark.parametrize("name", ["window", "lease", "wait_timeout", "retry_delay"])
def test_a_bad_duration_in_the_environment_names_its_variable(name):
    variable = f"ONCEONLY_{name.upper()}"
    message = text_of({variable: "a while"})
    assert message.startswith(f"{variable}='a while' is not a duration")
    assert ("presets payment, order" in message) == (name == "window")


def test_none_is_no_answer_to_keep_result():
    assert "KEEP_RESULT" in text_of({"ONCEONLY_KEEP_RESULT": "none"})


def test_only_variables_of_ours_in_capitals_count():
    others = {"onceonly_window": "nonsense", "WINDOW": "nonsense", "ONCEONLY_DEMO_SEED": "nonsense"}
    codec, one = JsonCodec(), policy()
    found = replace(policy(others, codec=codec), overrides=one.overrides)
    assert found == replace(one, codec=codec)


@pytest.mark.parametrize("engine", [Once, AsyncOnce])
def test_an_engine_reads_the_real_environment(engine, monkeypatch):
    monkeypatch.setenv("ONCEONLY_STORE", "memory://")
    monkeypatch.setenv("ONCEONLY_GROUP", "from-outside")
    monkeypatch.setenv("ONCEONLY_WINDOW", "notification")
    made = engine()
    assert (made.group, made._policy.window) == ("from-outside", 900.0)
    assert engine(group="given", window="order")._policy.window == 4 * HOUR


# --- store and group --------------------------------------------------------------------------


def test_store_and_group_come_from_code_before_the_environment():
    environ = {"ONCEONLY_STORE": "memory://", "ONCEONLY_GROUP": "outside"}
    assert store_and_group(None, None, environ) == ("memory://", "outside")
    assert store_and_group("sqlite:///a.db", "inside", environ) == ("sqlite:///a.db", "inside")


def test_no_store_says_where_to_give_one():
    with pytest.raises(ConfigurationError, match="ONCEONLY_STORE"):
        store_and_group(None, "billing", {})


@pytest.mark.parametrize("group", [None, "", 7, b"billing", "x" * 513])
def test_a_group_is_a_stable_text_and_never_guessed(group):
    with pytest.raises(ConfigurationError, match="group"):
        store_and_group("memory://", group, {})


@pytest.mark.parametrize("group", ["", "x" * 513])
def test_a_group_from_the_environment_is_checked_too(group):
    with pytest.raises(ConfigurationError, match="group"):
        store_and_group("memory://", None, {"ONCEONLY_GROUP": group})


def test_a_group_that_is_not_unicode_is_refused():
    with pytest.raises(ConfigurationError, match="group"):
        store_and_group("memory://", "\ud800", {})


@pytest.mark.parametrize("name", ["scope", "type"])
def test_a_text_that_is_not_unicode_is_refused(name):
    assert name in text_of(**{name: "\ud800"})


@pytest.mark.parametrize("bad", ["\ud800", "x" * 513], ids=["not unicode", "too long"])
def test_a_scope_given_by_the_call_is_checked_like_any_other(bad):
    with Once("memory://", group="billing") as once, pytest.raises(OnceonlyError, match="scope"):
        once.process(print, "message", key="a", scope=bad)
