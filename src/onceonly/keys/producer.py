"""Keys that a producer makes, once per logical event."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from onceonly.errors import ConfigurationError, InvalidKey, MissingExtra
from onceonly.keys.checking import check_key, sha256_of, shown, utf8
from onceonly.keys.places import looks_like_spec
from onceonly.windows import Duration, seconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAR = 1e12  # seconds: the year 33658; in milliseconds it was 2001
_MICROSECOND = timedelta(microseconds=1)


def uuid4_key(service: str | None = None) -> str:
    """A random key. Make it once per logical event and store it before the first send.

    A key made at send time does not survive a crash: the retry would get another one.
    """
    return _with_service(service, str(uuid.uuid4()))


def uuid7_key(service: str | None = None) -> str:
    """A random key that sorts after every key this process made before; made once, as :func:`uuid4_key`."""
    return _with_service(service, _uuid7())


def namespaced(service: str, key: str) -> str:
    """``service:key``. No two services collide, because a service's name has no colon."""
    if ":" in _named(service, "service"):
        msg = f"service must be a name without ':', or two services could collide; not {shown(service)}"
        raise InvalidKey(msg)
    whole = check_key(f"{service}:{check_key(key)}")
    if looks_like_spec(whole):
        msg = f"a service cannot be called {shown(service)}: its keys would look like a place to find keys"
        raise InvalidKey(msg)
    return whole


def event_key(entity: str, type: str, at: datetime | float, *, bucket: Duration) -> str:  # noqa: A002
    """The same key whenever the same event is computed again: entity, type and the bucket ``at`` falls in.

    For producers only, where one event always carries one timestamp: its own, not the time of sending.
    Two timestamps on either side of a bucket's edge give two keys however close they are, and two events
    in one bucket give one key. To drop events that are *about* equal use :func:`near_duplicate`.
    Buckets count from 1970 in UTC; another ``bucket`` gives other keys.
    """
    width = round(seconds(bucket, name="bucket") * 1e6)
    if width < 1:
        msg = f"bucket={bucket!r} must be at least one microsecond"
        raise ConfigurationError(msg)
    number = _microseconds(at) // width
    names = [utf8(_named(entity, "entity")), utf8(_named(type, "type"))]
    return "e1:" + sha256_of([*names, b"%d" % width, b"%d" % number])


def _with_service(service: str | None, key: str) -> str:
    return key if service is None else namespaced(service, key)


def _uuid7() -> str:
    stdlib = getattr(uuid, "uuid7", None)  # since Python 3.14
    if stdlib is not None:
        return str(stdlib())
    try:
        import uuid_utils  # noqa: PLC0415
    except ImportError as error:
        msg = "uuid7_key needs Python 3.14 or the package uuid-utils: pip install uuid-utils"
        raise MissingExtra(msg) from error
    return str(uuid_utils.uuid7())


def _named(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        msg = f"{name} must be non-empty text, not " + ("''" if value == "" else type(value).__name__)
        raise InvalidKey(msg)
    return value


def _microseconds(at: object) -> int:
    """Whole microseconds since 1970: exact, and equal for a datetime and its ``timestamp()``."""
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            msg = "at is a naive datetime: give it a timezone, or the event would depend on the host's"
            raise InvalidKey(msg)
        return (at - _EPOCH) // _MICROSECOND
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        msg = f"at must be an aware datetime or seconds since 1970, not {type(at).__name__}"
        raise InvalidKey(msg)
    if not abs(at) < _FAR:  # also refuses NaN
        msg = "at is not a time in seconds since 1970; is it in milliseconds?"
        raise InvalidKey(msg)
    return at * 1_000_000 if isinstance(at, int) else round(at * 1e6)
