"""Options with their safe defaults, their ``ONCEONLY_*`` twins and their checks, in one place.

What is given in code wins over the environment, which wins over the default.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, cast

from onceonly.codecs import JsonCodec
from onceonly.errors import ConfigurationError
from onceonly.events import Listener
from onceonly.keys import MAX_KEY_BYTES
from onceonly.protocols import Codec
from onceonly.types import Happened
from onceonly.windows import Duration, Overrides, seconds, window_seconds

F = TypeVar("F")

Probe = Callable[..., "bool | Happened[Any] | Awaitable[bool | Happened[Any] | None] | None"]
"""Given what the handler is given: True or ``Happened(result)`` if the effect of the orphaned run
happened, False if it did not, None if nobody can tell (the record is quarantined)."""

Text = str | Callable[..., str | None] | None
"""A constant, or a function of the message."""


class Options(TypedDict, total=False):
    """What an engine, and each of its handlers, can be told."""

    window: Duration | None
    windows: Mapping[str, Duration | None]
    lease: Duration
    scope: Text
    type: Text
    fingerprint: Callable[..., object] | None
    on_in_flight: Literal["reject", "wait"]
    wait_timeout: Duration
    on_store_error: Literal["closed", "open"]
    on_orphan: Literal["retry", "quarantine"] | Probe
    store_failure: Callable[[Exception], bool] | None
    max_attempts: int | None
    retry_delay: Duration | None
    keep_result: bool
    max_result_bytes: int
    codec: Codec
    on_event: Listener | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Options, checked and resolved. Durations are seconds."""

    group: str
    window: float | None
    windows: Mapping[str, float | None]  # by type
    lease: float
    scope: Text
    type: Text
    fingerprint: Callable[..., object] | None
    wait_timeout: float  # 0 rejects what is in flight
    fail_open: bool
    on_orphan: Literal["retry", "quarantine"] | Probe
    store_failure: Callable[[Exception], bool] | None
    max_attempts: int | None
    retry_delay: float
    keep_result: bool
    max_result_bytes: int
    codec: Codec
    on_event: Listener | None
    overrides: Overrides  # shared by all policies of an engine

    def window_of(self, kind: str | None) -> float | None:
        """What counts now: the store's word, else the code's; for the type, else for all."""
        for windows in (self.overrides.windows, self.windows):
            if kind in windows:
                return windows[kind]  # type: ignore[index]
            if None in windows:
                return windows[None]  # type: ignore[index]
        return self.window

    def terms(self, kind: str | None) -> tuple[float, float]:
        """Window and lease of a claim; no window is 0.0. A lease never outlasts its window."""
        window = self.window if not self.overrides.windows and not self.windows else self.window_of(kind)
        return window or 0.0, self.lease if not window or self.lease <= window else window


_DEFAULTS: Options = {
    "window": "24h",
    "windows": {},
    "scope": None,
    "type": None,
    "fingerprint": None,
    "on_in_flight": "reject",
    "wait_timeout": "30s",
    "on_store_error": "closed",
    "on_orphan": "retry",
    "store_failure": None,
    "max_attempts": None,
    "retry_delay": None,
    "keep_result": True,
    "max_result_bytes": 1_048_576,
    "on_event": None,
}
_DEFAULT_LEASE = 30.0
_CAN_BE_NONE = ("window", "retry_delay", "max_attempts")
_NUMBERS = ("max_attempts", "max_result_bytes")
_DURATIONS = ("lease", "wait_timeout", "retry_delay")
_IN_ENVIRONMENT = (
    *("window", "on_in_flight", "on_store_error", "on_orphan", "keep_result"),
    *(*_DURATIONS, *_NUMBERS),
)


def store_and_group(
    store: object, group: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[object, str]:
    """The store or URL, and the group, from code or environment."""
    store = store if store is not None else environ.get("ONCEONLY_STORE")
    if store is None:
        msg = "no store given: pass a URL such as 'sqlite:///onceonly.db', or set ONCEONLY_STORE"
        raise ConfigurationError(msg)
    group = group if group is not None else environ.get("ONCEONLY_GROUP")
    return store, check_name("group", group)


def resolve(
    group: str,
    options: Options,
    environ: Mapping[str, str] = os.environ,
    overrides: Overrides | None = None,
) -> Policy:
    """Options, environment and defaults as one checked policy. Without overrides no store is asked."""
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        known = ", ".join(Options.__annotations__)
        msg = f"unknown option {', '.join(unknown)}; there are {known}"
        raise ConfigurationError(msg)
    merged = cast(Options, {**_DEFAULTS, **_from_environment(environ, options), **options})
    window = window_seconds(merged["window"])
    return Policy(
        group=group,
        window=window,
        windows=_windows(merged["windows"]),
        lease=_lease(merged, window),
        scope=_text("scope", merged["scope"]),
        type=_text("type", merged["type"]),
        fingerprint=_callable("fingerprint", merged["fingerprint"]),
        wait_timeout=_wait_timeout(merged),
        fail_open=_choice("on_store_error", merged["on_store_error"], "closed", "open") == "open",
        on_orphan=_on_orphan(merged["on_orphan"]),
        store_failure=_callable("store_failure", merged["store_failure"]),
        max_attempts=_at_least_one("max_attempts", merged["max_attempts"]),
        retry_delay=_retry_delay(merged["retry_delay"]),
        keep_result=_yes_or_no("keep_result", merged["keep_result"]),
        max_result_bytes=_at_least_one("max_result_bytes", merged["max_result_bytes"]) or 0,
        codec=_codec(merged.get("codec")),
        on_event=_callable("on_event", merged["on_event"]),
        overrides=overrides or Overrides(due=float("inf")),
    )


def _from_environment(environ: Mapping[str, str], given: Options) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in _IN_ENVIRONMENT:
        text = environ.get(f"ONCEONLY_{name.upper()}")
        if text is None or name in given:
            continue
        found[name] = None if text.lower() == "none" and name in _CAN_BE_NONE else _parse(name, text)
    return found


def _parse(name: str, text: str) -> object:
    """As it could be given in code; what cannot be read is an error that names the variable."""
    variable = f"ONCEONLY_{name.upper()}"
    if name == "window":
        window_seconds(text, name=variable)
    if name in _DURATIONS:
        seconds(text, name=variable)
    if name == "keep_result":
        return _choice(variable, text.lower(), "true", "false") == "true"
    if name in _NUMBERS:
        if not text.isdecimal():
            msg = f"{variable}={text!r} must be a whole number"
            raise ConfigurationError(msg)
        return int(text)
    return text


def _lease(options: Options, window: float | None) -> float:
    if "lease" not in options:
        return min(_DEFAULT_LEASE, window or _DEFAULT_LEASE)
    lease = seconds(options["lease"], name="lease")
    if window is not None and lease > window:
        msg = (
            f"lease={options['lease']!r} is longer than window={options.get('window')!r}: a record "
            "would be forgotten while its claim could still be running. Shorten the lease"
        )
        raise ConfigurationError(msg)
    return lease


def _windows(value: object) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        msg = f"windows must be windows by type, such as {{'click': '5m'}}, not {type(value).__name__}"
        raise ConfigurationError(msg)
    return {
        check_name("type", kind): window_seconds(window, name=f"windows[{kind!r}]")
        for kind, window in value.items()
    }


def _wait_timeout(options: Options) -> float:
    timeout = seconds(options["wait_timeout"], name="wait_timeout")
    waits = _choice("on_in_flight", options["on_in_flight"], "reject", "wait") == "wait"
    return timeout if waits else 0.0


def _retry_delay(value: Duration | None) -> float:
    if value is None or (not value and not isinstance(value, (str, bool))):  # 0 and timedelta(0)
        return 0.0
    return seconds(value, name="retry_delay")


def _on_orphan(value: object) -> Literal["retry", "quarantine"] | Probe:
    if callable(value):
        return value
    if value in ("retry", "quarantine"):
        return value
    msg = f"on_orphan={value!r} must be 'retry', 'quarantine' or a probe, a function of the message"
    raise ConfigurationError(msg)


def _choice(name: str, value: object, *allowed: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        msg = f"{name}={value!r} must be one of {', '.join(allowed)}"
        raise ConfigurationError(msg)
    return value


def _yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        msg = f"{name}={value!r} must be True or False"
        raise ConfigurationError(msg)
    return value


def _codec(value: Codec | None) -> Codec:
    if value is None:
        return JsonCodec()
    if not callable(getattr(value, "encode", None)) or not callable(getattr(value, "decode", None)):
        msg = f"codec must have encode and decode, and {type(value).__name__} has not"
        raise ConfigurationError(msg)
    return value


def _at_least_one(name: str, value: int | None) -> int | None:
    if value is None and name == "max_attempts":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        msg = f"{name}={value!r} must be a whole number of at least 1"
        raise ConfigurationError(msg)
    return value


def _callable(name: str, value: F) -> F:
    if value is not None and not callable(value):
        msg = f"{name} must be a function, not {type(value).__name__}"
        raise ConfigurationError(msg)
    if inspect.iscoroutinefunction(value):
        msg = f"{name} must be a plain function: nobody awaits an async one"
        raise ConfigurationError(msg)
    return value


def _text(name: str, value: Text) -> Text:
    if value is None or callable(value):
        return _callable(name, value)
    return check_name(name, value)


def optional_name(name: str, value: object) -> str | None:
    return None if value is None else check_name(name, value)


def check_name(name: str, value: object) -> str:
    if value is None:
        msg = f"no {name} given: name who processes these messages, or set ONCEONLY_{name.upper()}"
        raise ConfigurationError(msg)
    try:
        if isinstance(value, str) and 0 < len(value.encode()) <= MAX_KEY_BYTES:
            return value
    except UnicodeEncodeError:
        pass
    msg = f"{name}={value!r} must be a text of 1 to {MAX_KEY_BYTES} bytes in UTF-8"
    raise ConfigurationError(msg)
