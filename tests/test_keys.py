"""Keys: every rule of ``onceonly.keys``. "Pitfall n" is row n of the list of textbook mistakes."""

from __future__ import annotations

import json
import os
import time
import unicodedata
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from hashlib import blake2b, sha256
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceonly import Once
from onceonly.errors import ConfigurationError, InvalidKey
from onceonly.keys import (
    MAX_KEY_BYTES,
    ContentKey,
    check_key,
    check_keys,
    content_key,
    event_key,
    extractor,
    fingerprint_bytes,
    looks_like_spec,
    namespaced,
    near_duplicate,
    uuid4_key,
    uuid7_key,
)
from onceonly.keys.content import _Plain

LONE = "\ud800"
NAIVE = datetime(2024, 1, 1)
NFC, NFD = "caf\u00e9", "cafe\u0301"

texts = st.text(max_size=8)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, min_size=1, max_size=4)


def shuffled(value: object) -> object:
    """The same JSON value with every object's names in the opposite order."""
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


# --- check_key --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "billing:17", " ", "é" * 256, "x" * 512, "日本", str(uuid.uuid4())])
def test_text_of_1_to_512_bytes_is_a_key(key: str) -> None:
    assert check_key(key) is key


def test_prefixed_keys_and_uuids_both_fit_pitfall_7() -> None:
    made = uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert check_key(made) == "12345678-1234-5678-1234-567812345678"
    assert check_key(f"orders:{made}") == f"orders:{made}"


def test_a_str_subclass_becomes_plain_text() -> None:
    assert type(check_key(Colour.RED)) is str
    assert check_key(Colour.RED) == "red"


@pytest.mark.parametrize(("key", "words"), [(None, "it is None"), (str, "not a function")])
def test_no_key_at_all_is_refused_as_such(key: object, words: str) -> None:
    with pytest.raises(InvalidKey, match=words):
        check_key(key)


@pytest.mark.parametrize("key", [1, 0, True, 1.5, b"a", [], ("a",), object()])
def test_what_is_not_text_is_refused_by_type(key: object) -> None:
    with pytest.raises(InvalidKey, match=f"not {type(key).__name__}: convert it to text yourself"):
        check_key(key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "empty"),
        ("x" * 513, "513 bytes"),
        ("é" * 257, "514 bytes"),
        ("日" * 171, "513 bytes"),
        ("ok" + LONE, "surrogate at index 2"),
    ],
)
def test_text_that_cannot_be_a_key_says_why(key: str, why: str) -> None:
    with pytest.raises(InvalidKey, match=why):
        check_key(key)


@pytest.mark.parametrize("char", ["x", "\x00", "日", "\U0001f600"])
def test_an_error_echoes_at_most_40_characters(char: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        check_key(char * 5000)
    before, _, _ = str(caught.value).partition(" has ")
    assert len(before.partition("key: ")[2]) <= 40


@given(st.text())
def test_check_key_accepts_exactly_the_texts_that_fit(key: str) -> None:
    if 0 < len(key.encode()) <= MAX_KEY_BYTES:
        assert check_key(key) == key
    else:
        with pytest.raises(InvalidKey):
            check_key(key)


def test_check_keys_keeps_order_and_takes_any_iterable() -> None:
    made = uuid.uuid4()
    assert check_keys(iter(["b", made, "é", Colour.RED])) == ["b", str(made), "é", "red"]
    assert check_keys([]) == []


@pytest.mark.parametrize("bad", [None, 7, "", "x" * 513, LONE])
def test_check_keys_names_the_index(bad: object) -> None:
    with pytest.raises(InvalidKey, match=r"^keys\[2\]: "):
        check_keys(["a", "b", bad, None])


@pytest.mark.parametrize("keys", ["abc", b"abc"])
def test_check_keys_does_not_take_one_text_for_many_keys(keys: str | bytes) -> None:
    with pytest.raises(InvalidKey, match="list of keys"):
        check_keys(keys)


def test_check_keys_is_quick() -> None:
    keys = [f"order-{n}" for n in range(10_000)]
    best = min(_timed(lambda: check_keys(keys)) for _ in range(5))
    assert best < 0.05  # about 1 ms; generous for slow machines


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- made by the producer ---------------------------------------------------------------------


def test_uuid_keys_are_uuids_with_an_optional_service() -> None:
    assert uuid.UUID(uuid4_key()).version == 4
    assert uuid.UUID(uuid7_key()).version == 7
    for make in (uuid4_key, uuid7_key):
        service, _, rest = make("billing").partition(":")
        assert service == "billing"
        uuid.UUID(rest)


def test_uuid7_keys_are_in_order_of_time() -> None:
    keys = [uuid7_key() for _ in range(5000)]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    stamp = int(keys[0].replace("-", "")[:12], 16) / 1000
    assert abs(stamp - time.time()) < 60


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("make", [uuid4_key, uuid7_key])
def test_forked_workers_make_different_uuids(make: Callable[[], str]) -> None:
    make()
    keys = [*_made_in_child(make), *_made_in_child(make), *(make() for _ in range(50))]
    assert len(set(keys)) == 150


def _made_in_child(make: Callable[[], str]) -> list[str]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, "\n".join(make() for _ in range(50)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        keys = pipe.read().split("\n")
    os.waitpid(pid, 0)
    return keys


def test_a_uuid_is_made_once_and_a_computed_key_survives_a_crash_pitfall_16() -> None:
    """A uuid per send is a new event per retry; a key computed from the event is the same after a restart."""
    assert uuid4_key() != uuid4_key()
    assert uuid7_key() != uuid7_key()
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    pinned = "e1:" + _sha256(b"8:order-174:paid9:3000000007:5715216")
    assert event_key("order-17", "paid", at, bucket="5m") == pinned


def test_namespaced() -> None:
    assert namespaced("billing", "17") == "billing:17"
    assert namespaced("billing", "a:b") == "billing:a:b"


@given(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5))
def test_two_services_never_collide(one: str, other: str, key: str) -> None:
    """Whatever key the other service uses: where both names are allowed, the results differ."""
    if one == other or ":" in one + other or looks_like_spec(f"{one}:") or looks_like_spec(f"{other}:"):
        return
    for theirs in (key, f"{one}:{key}", key.removeprefix(other)):
        if theirs:
            assert namespaced(one, key) != namespaced(other, theirs)


@pytest.mark.parametrize(
    "service", ["", "a:b", ":", None, 1, "x" * 512, LONE, "header", "attr", "$.a", "$[a"]
)
def test_a_service_that_cannot_be_a_prefix_is_refused(service: str) -> None:
    with pytest.raises(InvalidKey):
        namespaced(service, "17")


@pytest.mark.parametrize("key", ["", 17, None, LONE])
def test_a_bad_key_is_not_hidden_by_its_service(key: str) -> None:
    with pytest.raises(InvalidKey):
        namespaced("billing", key)


def test_an_empty_service_is_an_error_not_no_service() -> None:
    with pytest.raises(InvalidKey, match="service"):
        uuid4_key("")


# --- event_key --------------------------------------------------------------------------------


def test_event_key_is_one_key_per_bucket() -> None:
    def at(second: float) -> str:
        return event_key("user-1", "login", second, bucket="5m")

    assert at(300) == at(599.999)
    assert at(299.999) != at(300)
    assert at(600) != at(300)
    assert at(-1) != at(1)


def test_event_key_tells_entity_type_and_bucket_apart() -> None:
    keys = {
        event_key(entity, kind, at, bucket=bucket)
        for entity in ("a", "b")
        for kind in ("x", "y")
        for at in (0.0, 60.0)
        for bucket in (60, 30)
    }
    assert len(keys) == 16


def test_event_key_does_not_join_its_parts_pitfall_12() -> None:
    assert event_key("a:b", "c", 0, bucket=1) != event_key("a", "b:c", 0, bucket=1)
    assert event_key("ab", "c", 0, bucket=1) != event_key("a", "bc", 0, bucket=1)


@given(st.datetimes(NAIVE.replace(1971), NAIVE.replace(2200)), st.integers(-14, 14))
def test_event_key_is_the_same_for_one_instant_however_it_is_written(naive: datetime, hours: int) -> None:
    at = naive.replace(tzinfo=UTC)
    elsewhere = at.astimezone(timezone(timedelta(hours=hours)))
    keys = {event_key("e", "t", when, bucket="100ms") for when in (at, elsewhere, at.timestamp())}
    assert len(keys) == 1


def test_event_key_takes_durations_as_people_write_them() -> None:
    keys = {event_key("e", "t", 1e9, bucket=b) for b in ("5m", 300, 300.0, timedelta(minutes=5))}
    assert len(keys) == 1
    assert event_key("e", "t", 10, bucket=3) == event_key("e", "t", 10.0, bucket=3)


@pytest.mark.parametrize(
    "at",
    [NAIVE, float("nan"), float("inf"), True, None, "2024", 10**400, 1_700_000_000_000, 1e308],
)
def test_event_key_refuses_what_is_not_one_instant(at: float) -> None:
    with pytest.raises(InvalidKey, match=r"^at "):
        event_key("e", "t", at, bucket="5m")


@pytest.mark.parametrize(("entity", "kind"), [("", "t"), ("e", ""), (1, "t"), ("e", None), (LONE, "t")])
def test_event_key_refuses_bad_names(entity: str, kind: str) -> None:
    with pytest.raises(InvalidKey):
        event_key(entity, kind, 0, bucket="5m")


@pytest.mark.parametrize("bucket", [0, -1, "soon", 1e-9])
def test_event_key_refuses_bad_buckets(bucket: float | str) -> None:
    with pytest.raises(ConfigurationError, match="bucket"):
        event_key("e", "t", 0, bucket=bucket)


# --- content_key ------------------------------------------------------------------------------


def test_content_keys_are_versioned_sha256() -> None:
    """Pinned: a change of recipe would make every stored key new, and run every message again."""
    whole = content_key(context={"topic": "orders"})({"b": [1.0, "é"], "a": None})
    assert whole == "c1:" + _sha256(b'1:15:topic6:orders4:json23:{"a":null,"b":[1,"\xc3\xa9"]}')
    chosen = content_key(fields=["b", "a.x"])({"b": 2, "a": {"x": 1}, "z": 0})
    assert chosen == "c1:" + _sha256(b'1:06:fields25:[[["a","x"],1],[["b"],2]]')
    assert content_key()(b"raw") == "c1:" + _sha256(b"1:05:bytes3:raw")


def _sha256(data: bytes) -> str:
    return sha256(data).hexdigest()


@given(json_objects)
def test_order_of_names_never_matters_pitfall_13(message: dict[str, object]) -> None:
    key = content_key()(message)
    assert content_key()(shuffled(message)) == key
    assert content_key()(json.loads(json.dumps(message))) == key
    assert content_key()(MappingProxyType(OrderedDict(message))) == key
    assert check_key(key) == key


@given(json_objects, json_objects)
def test_other_content_has_another_key(one: dict[str, object], other: dict[str, object]) -> None:
    same = rfc8785.dumps(one) == rfc8785.dumps(other)  # type: ignore[arg-type]
    assert (content_key()(one) == content_key()(other)) is same


@pytest.mark.parametrize(
    ("one", "other"), [(1.0, 1), (-0.0, 0), (1e2, 100), (0.5, 5e-1), ((1, 2), [1, 2]), (Number.ONE, 1)]
)
def test_one_value_has_one_form_pitfall_13(one: object, other: object) -> None:
    assert content_key()({"v": one}) == content_key()({"v": other})


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (1e21, b"1e+21"),
        (1e20, b"100000000000000000000"),
        (1e-7, b"1e-7"),
        (0.000001, b"0.000001"),
        (1.0, b"1"),
    ],
)
def test_floats_take_the_form_of_rfc_8785_pitfall_13(number: float, form: bytes) -> None:
    data = b"[%b]" % form
    assert content_key()([number]) == "c1:" + _sha256(b"1:04:json%d:%b" % (len(data), data))


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), (1, True), (None, "null"), ("", None), ([], {}), ({}, None)]
)
def test_values_of_another_kind_differ(one: object, other: object) -> None:
    assert content_key()({"v": one}) != content_key()({"v": other})


def test_kinds_of_payload_cannot_collide() -> None:
    values: list[object] = [
        b'{"a":1}',
        '{"a":1}',
        {"a": 1},
        ['{"a":1}'],
        '"x"',
        "x",
        b"x",
        ["x"],
        1,
        "1",
        b"1",
    ]
    keys = {content_key()(value) for value in values}
    keys |= {content_key(fields=["a"])({"a": 1}), content_key(fields=["a", "b"])({"a": 1, "b": 1})}
    assert len(keys) == len(values) + 2


def test_unicode_forms_differ_unless_nfc_pitfall_13() -> None:
    for one, other in [({NFC: 1}, {NFD: 1}), ({"v": [NFC]}, {"v": [NFD]}), (NFC, NFD)]:
        assert content_key()(one) != content_key()(other)
        assert content_key(nfc=True)(one) == content_key(nfc=True)(other)
    assert content_key(context={"c": NFC})(1) != content_key(context={"c": NFD})(1)
    assert content_key(context={"c": NFC}, nfc=True)(1) == content_key(context={"c": NFD}, nfc=True)(1)


def test_nfc_applies_to_chosen_and_ignored_names() -> None:
    assert content_key(fields=[NFC], nfc=True)({NFD: 1}) == content_key(fields=[NFD], nfc=True)({NFC: 1})
    assert content_key(ignore=[NFC], nfc=True)({NFD: 1, "a": 2}) == content_key(nfc=True)({"a": 2})
    with pytest.raises(InvalidKey, match="no field"):
        content_key(fields=[NFC])({NFD: 1})


@pytest.mark.parametrize("options", [{}, {"fields": [NFC]}, {"ignore": ["z"]}])
def test_names_that_become_equal_under_nfc_are_refused(options: dict[str, list[str]]) -> None:
    message = {NFC: 1, NFD: 2}
    content_key(**options)(message)  # type: ignore[arg-type]
    with pytest.raises(InvalidKey, match="NFC"):
        content_key(nfc=True, **options)(message)  # type: ignore[arg-type]


@given(json_objects)
def test_nfc_is_the_key_of_the_normalised_message(message: dict[str, object]) -> None:
    normal = json.loads(unicodedata.normalize("NFC", json.dumps(message, ensure_ascii=False)))
    try:
        key = content_key(nfc=True)(message)
    except InvalidKey:
        return
    assert key == content_key()(normal)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**53, "2\\^53"),
        (-(2**53), "2\\^53"),
        (10**400, "2\\^53"),
        (float("nan"), "NaN"),
        (float("inf"), "NaN or infinite"),
        (b"raw", "is bytes"),
        ({1}, "is set"),
        (NAIVE, "is datetime"),
        (object(), "is object"),
        (LONE, "surrogate"),
        ({1: "a"}, "int, not text"),
        ({LONE: 1}, "surrogate"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path_pitfall_13(value: object, why: str) -> None:
    message = {"order": {"lines": [{}, {"line no": value}]}}
    where = r"\$\.order\.lines\[1\]\['line no'\]"
    for make in (content_key(), content_key(fields=["order"]), content_key(ignore=["other"])):
        with pytest.raises(InvalidKey, match=f"{where} .*{why}"):
            make(message)
    with pytest.raises(InvalidKey, match=f"{where} .*{why}"):
        fingerprint_bytes(message)


def test_the_largest_safe_integers_are_fine() -> None:
    assert content_key()([2**53 - 1]) != content_key()([2**53 - 2])
    assert content_key()([1 - 2**53]) != content_key()([2 - 2**53])


def test_an_error_does_not_show_the_payload() -> None:
    with pytest.raises(InvalidKey) as caught:
        content_key()({"card": {"4111111111111111"}})
    assert "4111" not in str(caught.value)


def test_a_message_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for make in (content_key(), content_key(fields=["a"])):
        with pytest.raises(InvalidKey, match="nested too deeply"):
            make({"a": loop})
    with pytest.raises(InvalidKey, match="not JSON"):
        content_key(fields=["a"])("[" * 100_000)


@pytest.mark.parametrize("empty", [None, "", b"", {}, [], ()])
def test_messages_without_content_never_share_a_key(empty: object) -> None:
    with pytest.raises(InvalidKey, match="no content"):
        content_key()(empty)


def test_ignoring_everything_is_no_content() -> None:
    with pytest.raises(InvalidKey, match="no content"):
        content_key(ignore=["a"])({"a": 1})


def test_two_equal_real_orders_collapse_only_by_choice_pitfall_19() -> None:
    """By id they stay two; by content they are one, unless fields or context tell them apart."""
    first = {"id": "o-1", "sku": "tea", "qty": 1}
    second = {"id": "o-2", "sku": "tea", "qty": 1}
    by_id = extractor("$.id", fallback=content_key(fields=["sku", "qty"]))
    assert by_id(first) != by_id(second)
    assert content_key()(first) != content_key()(second)
    by_content = content_key(fields=["sku", "qty"])
    assert by_content(first) == by_content(second)
    scoped = [content_key(fields=["sku", "qty"], context={"cart": cart})(first) for cart in ("1", "2")]
    assert scoped[0] != scoped[1]
    without_id = {"sku": "tea", "qty": 1}
    with pytest.raises(InvalidKey, match=r"fallback=content_key"):
        extractor("$.id")(without_id)
    assert by_id(without_id) == by_content(without_id)


@pytest.mark.parametrize("fallback", ["$.payload", "", 0, {"sku": "tea"}])
@pytest.mark.parametrize("spec", ["$.id", len])
def test_a_fallback_that_cannot_be_called_is_refused_now_not_at_the_first_message(
    spec: Any, fallback: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"fallback must be a function"):
        extractor(spec, fallback=fallback)
    with pytest.raises(ConfigurationError, match=r"fallback must be a function"):
        Once("memory://", group="billing").handler(key=spec, fallback=fallback)(print)


def test_context_is_not_joined_pitfall_12() -> None:
    def key(**context: str) -> str:
        return content_key(context=context)("x")

    assert key(p="a:b", q="c") != key(p="a", q="b:c")
    assert key(p="ab", q="c") != key(p="a", q="bc")
    assert key(p="a") != key(p="a", q="")
    assert key(pa="b") != key(p="ab")
    assert key(p="q", q="p") != key(p="p", q="q")
    assert key(p="1", q="2") == key(q="2", p="1")
    assert key() == content_key()("x")


def test_chosen_fields_are_not_joined_pitfall_12() -> None:
    both = content_key(fields=["p", "q"])
    assert both({"p": "a:b", "q": "c"}) != both({"p": "a", "q": "b:c"})
    assert both({"p": "ab", "q": "c"}) != both({"p": "a", "q": "bc"})
    assert both({"p": "1", "q": "2"}) != both({"p": "2", "q": "1"})


@given(st.dictionaries(texts, texts, max_size=3), st.dictionaries(texts, texts, max_size=3), texts, texts)
def test_context_and_content_never_run_into_each_other(
    one: dict[str, str], other: dict[str, str], text: str, another: str
) -> None:
    keys = [content_key(context=c)([t]) for c, t in ((one, text), (other, another))]
    assert (keys[0] == keys[1]) is (one == other and text == another)


@pytest.mark.parametrize("context", [{"a": 1}, {1: "a"}, {"a": None}, {"a": LONE}])
def test_context_maps_text_to_text(context: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="context"):
        content_key(context=context)


def test_context_names_equal_under_nfc_are_refused() -> None:
    content_key(context={NFC: "1", NFD: "2"})
    with pytest.raises(ConfigurationError, match="NFC"):
        content_key(context={NFC: "1", NFD: "2"}, nfc=True)


def test_context_is_fixed_when_the_key_is_made() -> None:
    context = {"topic": "a"}
    make = content_key(context=context)
    before = make("x")
    context["topic"] = "b"
    assert make("x") == before


def test_fields_choose() -> None:
    make = content_key(fields=["user.id", "action"])
    message = {"user": {"id": 7, "name": "A"}, "action": "buy", "at": 1}
    assert make(message) == make({"action": "buy", "user": {"id": 7}, "at": object()})
    assert make(message) != make({**message, "action": "sell"})
    assert make(message) != make({**message, "user": {"id": 8}})
    assert make(message) == content_key(fields=["action", "user.id", "action"])(message)
    assert make(message) == content_key(fields=["$.action", "$['user'].id"])(message)


def test_a_dotted_field_is_not_a_name_with_a_dot() -> None:
    nested, flat = {"a": {"b": 1}}, {"a.b": 1}
    assert content_key(fields=["a.b"])(nested) != content_key(fields=["$['a.b']"])(flat)
    with pytest.raises(InvalidKey, match="no field"):
        content_key(fields=["a.b"])(flat)
    assert content_key(fields=["$['..']"])({"..": 1})


@pytest.mark.parametrize(
    "message", [{}, {"user": {}}, {"user": None}, {"user": "id"}, {"user": ["id"]}, [], 5, None]
)
def test_a_missing_chosen_field_is_named(message: object) -> None:
    with pytest.raises(InvalidKey, match=r"no field \$\.user\.id"):
        content_key(fields=["user.id"])(message)


def test_a_chosen_null_beside_others_is_a_value() -> None:
    make = content_key(fields=["a", "b"])
    assert make({"a": None, "b": 0}) != make({"a": "", "b": 0})


@pytest.mark.parametrize("empty", [None, "", [], {}], ids=repr)
def test_chosen_fields_that_hold_nothing_are_refused_not_shared(empty: object) -> None:
    for make in (content_key(fields=["a", "b"]), near_duplicate(fields=["a", "b"])):
        with pytest.raises(InvalidKey, match=r"\$\.a, \$\.b: nothing is there"):
            make({"a": empty, "b": None, "n": 1})
        make({"a": empty, "b": False})


def test_fields_of_list_elements() -> None:
    make = content_key(fields=["$.lines[0].sku"])
    assert make({"lines": [{"sku": 1}]}) == make({"lines": [{"sku": 1}, {"sku": 2}]})
    with pytest.raises(InvalidKey, match=r"no field \$\.lines\[0\]\.sku"):
        make({"lines": []})


def test_ignore_drops() -> None:
    make = content_key(ignore=["sent_at", "meta.try", "$.lines[0].at"])
    message = {"id": 1, "sent_at": 5, "meta": {"try": 1, "k": 2}, "lines": [{"at": 1, "n": 1}, {"at": 1}]}
    clean = {"id": 1, "meta": {"k": 2}, "lines": [{"n": 1}, {"at": 1}]}
    assert make(message) == make(clean) == content_key()(clean)
    assert make(message) != make({**message, "id": 2})
    assert make(message) != make({**message, "meta": {"k": 3}})


def test_an_ignored_field_may_hold_anything() -> None:
    assert content_key(ignore=["at"])({"a": 1, "at": NAIVE}) == content_key()({"a": 1})


def test_fields_of_json_text_are_found() -> None:
    message = {"a": {"b": 1}, "t": 5}
    for raw in (json.dumps(message), json.dumps(message).encode()):
        assert content_key(fields=["a.b"])(raw) == content_key(fields=["a.b"])(message)
        assert content_key(ignore=["t"])(raw) == content_key(ignore=["t"])(message)


@pytest.mark.parametrize("raw", ["{", b"\xff", "", "plain"])
def test_fields_of_a_payload_that_is_not_json_are_refused(raw: str | bytes) -> None:
    with pytest.raises(InvalidKey, match="not JSON"):
        content_key(fields=["a"])(raw)


def test_doubled_names_in_json_text_are_refused() -> None:
    with pytest.raises(InvalidKey, match="twice"):
        content_key(fields=["a"])('{"a":1,"a":2}')


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ["a"], "ignore": ["b"]},
        {"fields": [], "ignore": []},
        {"fields": []},
        {"ignore": []},
        {"fields": "user"},
        {"ignore": "user"},
        {"fields": [1]},
        {"fields": [""]},
        {"fields": ["a..b"]},
        {"fields": ["$.a["]},
        {"ignore": ["$.lines[0]"]},
        {"ignore": ["$.lines[-1].at"]},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigurationError):
        content_key(**options)  # type: ignore[arg-type]


@dataclass
class Line:
    sku: str


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


def test_dataclasses_are_mappings_of_their_fields() -> None:
    order = Order(1, [Line("tea")])
    plain = {"id": 1, "lines": [{"sku": "tea"}]}
    assert content_key()(order) == content_key()(plain)
    assert content_key(fields=["id"])(order) == content_key(fields=["id"])(plain)
    assert content_key(ignore=["id"])(order) == content_key(ignore=["id"])(plain)
    with pytest.raises(InvalidKey, match="is type"):
        content_key()(Order)


def test_a_content_key_is_frozen_and_comparable() -> None:
    make = content_key(fields=["b", "a"])
    assert isinstance(make, ContentKey)
    assert make == content_key(fields=["a", "b"])
    assert hash(make) == hash(content_key(fields=["a", "b"]))
    with pytest.raises(FrozenInstanceError):
        make.nfc = True  # type: ignore[misc]


def test_a_content_key_does_not_change_its_message() -> None:
    message = {"a": {"b": 1}, "t": [1, 2]}
    copy = json.loads(json.dumps(message))
    content_key(ignore=["a.b"])(message)
    content_key(fields=["a"])(message)
    assert message == copy


# --- near_duplicate ---------------------------------------------------------------------------


def test_near_duplicates_have_no_bucket_edge_pitfall_11() -> None:
    """Two equal events 2 s apart on either side of a bucket edge: two bucket keys, one near-duplicate key."""
    before = {"user": "u1", "action": "click", "at": 299.0}
    after = {"user": "u1", "action": "click", "at": 301.0}
    buckets = {event_key("u1", "click", e["at"], bucket="5m") for e in (before, after)}  # type: ignore[arg-type]
    assert len(buckets) == 2
    same = near_duplicate(fields=["user", "action"])
    assert same(before) == same(after)
    assert same(before) != same({**after, "user": "u2"})


def test_near_duplicate_is_a_content_key_with_the_same_rules() -> None:
    same = near_duplicate(fields=["a"], context={"topic": "t"}, nfc=True)
    assert same == content_key(fields=["a"], context={"topic": "t"}, nfc=True)
    assert same({"a": NFC}) == same({"a": NFD})
    with pytest.raises(InvalidKey, match=r"no field \$\.a"):
        same({})
    with pytest.raises(ConfigurationError):
        near_duplicate(fields=[])


# --- fingerprint_bytes ------------------------------------------------------------------------


def test_fingerprints_are_16_stable_bytes() -> None:
    assert fingerprint_bytes("x") == blake2b(b"4:text1:x", digest_size=16).digest()
    assert fingerprint_bytes(b"x") == blake2b(b"5:bytes1:x", digest_size=16).digest()
    assert (
        fingerprint_bytes({"b": 1.0, "a": 2}) == blake2b(b'4:json13:{"a":2,"b":1}', digest_size=16).digest()
    )
    assert len(fingerprint_bytes(None)) == 16


def test_fingerprints_of_text_bytes_and_json_differ() -> None:
    values: list[object] = ["1", b"1", 1, [1], "[1]", b"[1]", "", b"", None, {}, []]
    assert len({fingerprint_bytes(value) for value in values}) == len(values)
    assert (
        fingerprint_bytes(bytearray(b"x")) == fingerprint_bytes(memoryview(b"x")) == fingerprint_bytes(b"x")
    )


@given(json_values)
def test_fingerprints_ignore_the_order_of_names(value: object) -> None:
    assert fingerprint_bytes(shuffled(value)) == fingerprint_bytes(value)


@pytest.mark.parametrize("value", [object(), LONE, [2**53], {"a": b""}])
def test_fingerprints_of_what_has_no_form_are_refused(value: object) -> None:
    with pytest.raises(InvalidKey):
        fingerprint_bytes(value)


# --- extractor: paths -------------------------------------------------------------------------

MESSAGE = {
    "id": "m-1",
    "n": 17,
    "a": {"b": [{"c d": "deep"}, {"é": "accent"}]},
    "a.b": "dotted",
    "it's": "single",
    'say "hi"': "double",
    "back\\slash": "back",
    "tab\t": "tab",
    "😀": "smile",
    "": "blank",
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.id", "m-1"),
        ("$['id']", "m-1"),
        ('$["id"]', "m-1"),
        ("$.n", "17"),
        ("$.a.b[0]['c d']", "deep"),
        ("$.a['b'][-2][\"c d\"]", "deep"),
        ("$.a.b[1].é", "accent"),
        ("$.a.b[-1]['\\u00e9']", "accent"),
        ("$.a .b [ 0 ] [ 'c d' ]", "deep"),
        ("$['a.b']", "dotted"),
        ("$['it\\'s']", "single"),
        ('$["it\'s"]', "single"),
        ("$['say \"hi\"']", "double"),
        ('$["say \\"hi\\""]', "double"),
        ("$['back\\\\slash']", "back"),
        ("$['tab\\t']", "tab"),
        ("$['\\ud83d\\ude00']", "smile"),
        ("$.😀", "smile"),
        ("$['']", "blank"),
    ],
)
def test_a_path_finds_one_place(path: str, found: str) -> None:
    find = extractor(path)
    assert find(MESSAGE) == found
    assert find(MappingProxyType(MESSAGE)) == found
    assert find(json.dumps(MESSAGE)) == found
    assert find(json.dumps(MESSAGE).encode()) == found


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("$.", 1),
        ("$[", 1),
        ("$.a.", 3),
        ("$.a..b", 3),
        ("$..a", 1),
        ("$.*", 1),
        ("$[*]", 1),
        ("$.a[1:2]", 3),
        ("$.a[0,1]", 3),
        ("$.a[?@.b]", 3),
        ("$.a[01]", 3),
        ("$.a[-0]", 3),
        ("$.a['b]", 3),
        ("$.a[b]", 3),
        ("$.a['\\x']", 3),
        ("$.a['\\\"']", 3),
        ('$.a["\\\'"]', 3),
        ("$.a['\\ud800']", 3),
        ("$.message-id", 9),
        ("$.1", 1),
        ("$.a b", 3),
        ("$.a ", 3),
        ("$.a. b", 3),
        ("$['a\nb']", 1),
    ],
)
def test_a_bad_path_is_refused_at_once_with_its_position(path: str, position: int) -> None:
    with pytest.raises(ConfigurationError, match=f"position {position}:"):
        extractor(path)


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.text(min_size=1, max_size=10))
def test_every_name_can_be_written_as_a_path(names: list[str], found: str) -> None:
    message: object = found
    for name in reversed(names):
        message = {name: message}
    double = "$" + "".join(f"[{json.dumps(name)}]" for name in names)
    escaped = (json.dumps(name)[1:-1].replace('\\"', '"').replace("'", "\\'") for name in names)
    single = "$" + "".join(f"['{name}']" for name in escaped)
    assert extractor(double)(message) == found
    assert extractor(single)(message) == found


@pytest.mark.parametrize(
    "message",
    [
        *({}, {"a": None}, {"a": {}}, {"a": {"b": []}}, {"a": {"b": [None]}}, {"a": {"b": [""]}}),
        *({"a": {"b": "text"}}, {"a": {"b": {"0": "x"}}}, [], None, 5, "plain", b"\xff", "[" * 100_000),
    ],
)
def test_a_path_that_finds_nothing(message: object) -> None:
    with pytest.raises(InvalidKey, match=r"^\$\.a\.b\[0\] found no id .*fallback=content_key"):
        extractor("$.a.b[0]")(message)
    assert extractor("$.a.b[0]", fallback=lambda _: "instead")(message) == "instead"


# --- extractor: headers and attributes --------------------------------------------------------


class Kafka:
    """As confluent-kafka has it: ``headers()`` gives pairs, or None."""

    def __init__(self, pairs: list[tuple[str, bytes | None]] | None) -> None:
        self._pairs = pairs

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._pairs


@pytest.mark.parametrize(
    "message",
    [
        SimpleNamespace(headers={"Message-ID": "m-1"}),
        SimpleNamespace(headers=[("other", b"\xff"), ("message-id", b"m-1")]),
        SimpleNamespace(headers=(("MESSAGE-ID", bytearray(b"m-1")),)),
        {"headers": {"Message-Id": "m-1"}},
        {"headers": [(b"message-id", b"m-1"), (b"message-id", b"m-1")]},
        Kafka([("Message-Id", b"m-1"), ("x", None)]),
    ],
)
def test_a_header_is_found_whatever_its_case_and_carrier(message: object) -> None:
    assert extractor("header:message-id")(message) == "m-1"
    assert extractor("header:Message-ID")(message) == "m-1"


@pytest.mark.parametrize(
    "message",
    [
        {},
        None,
        {"headers": None},
        {"headers": {}},
        {"headers": {"message-id": ""}},
        {"headers": {"message-id": None}},
        {"headers": [("message-id", b"")]},
        Kafka(None),
        Kafka([("message-id", None)]),
        "header:message-id",
    ],
)
def test_a_header_that_is_not_there(message: object) -> None:
    with pytest.raises(InvalidKey, match=r"^header:message-id found no id"):
        extractor("header:message-id")(message)
    assert extractor("header:message-id", fallback=lambda _: "instead")(message) == "instead"


@pytest.mark.parametrize(
    ("value", "why"),
    [(b"\xff\xfe", "not bytes"), ("x" * 513, "513 bytes"), (["m"], "not list"), (True, "not bool")],
)
def test_a_header_that_cannot_be_a_key_never_falls_back(value: object, why: str) -> None:
    find = extractor("header:message-id", fallback=lambda _: "instead")
    with pytest.raises(InvalidKey, match=f"^header:message-id: .*{why}"):
        find({"headers": {"message-id": value}})


def test_two_different_ids_in_headers_are_refused() -> None:
    find = extractor("header:id", fallback=lambda _: "instead")
    with pytest.raises(InvalidKey, match="more than once"):
        find({"headers": [("id", b"a"), ("ID", b"b")]})


def test_attributes() -> None:
    message = SimpleNamespace(
        properties=SimpleNamespace(message_id="m-1", n=5, u=uuid.UUID(int=1), none=None)
    )
    assert extractor("attr:properties.message_id")(message) == "m-1"
    assert extractor("attr:properties.n")(message) == "5"
    assert extractor("attr:properties.u")(message) == str(uuid.UUID(int=1))
    for missing in ("attr:properties.nope", "attr:nope.message_id", "attr:properties.none"):
        with pytest.raises(InvalidKey, match=f"^{missing} found no id"):
            extractor(missing)(message)
        assert extractor(missing, fallback=lambda _: "instead")(message) == "instead"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "$",
        "id",
        "header:",
        "header: ",
        "attr:",
        "attr:a..b",
        "attr:a b",
        "attr:a.",
        "body:x",
        "Header:x",
        5,
        None,
    ],
)
def test_a_spec_that_says_nothing_is_refused_at_once(spec: str) -> None:
    with pytest.raises(ConfigurationError):
        extractor(spec)


# --- extractor: functions ---------------------------------------------------------------------


def test_a_function_finds_the_key() -> None:
    def by_id(message: dict[str, object]) -> object:
        return message["id"]

    assert extractor(by_id)({"id": "m-1"}) == "m-1"
    assert extractor(by_id)({"id": uuid.UUID(int=1)}) == str(uuid.UUID(int=1))
    assert extractor(content_key())({"a": 1}) == content_key()({"a": 1})


@pytest.mark.parametrize(
    ("find", "cause"),
    [
        (lambda m: m["nope"], KeyError),
        (lambda m: m["list"][0], IndexError),
        (lambda m: m.nope, AttributeError),
        (lambda m: None, type(None)),
        (lambda m: "", type(None)),
    ],
)
def test_a_function_that_finds_nothing(find: Callable[[object], object], cause: type) -> None:
    message: dict[str, list[str]] = {"list": []}
    with pytest.raises(InvalidKey, match="found no id") as caught:
        extractor(find)(message)
    assert isinstance(caught.value.__cause__, cause)
    assert extractor(find, fallback=lambda _: "instead")(message) == "instead"


@pytest.mark.parametrize("error", [TypeError, ValueError, RuntimeError, InvalidKey, KeyboardInterrupt])
def test_other_errors_of_a_function_go_on(error: type[BaseException]) -> None:
    def find(_: object) -> str:
        raise error("mine")

    with pytest.raises(error, match="mine"):
        extractor(find, fallback=lambda _: "instead")({})


def test_integers_become_decimal_text_and_nothing_else_does() -> None:
    def same(message: object) -> object:
        return message

    find = extractor(same, fallback=lambda _: "instead")
    assert [find(n) for n in (0, -5, 2**63, Number.ONE)] == ["0", "-5", str(2**63), "1"]
    unfit: list[object] = [True, False, 1.0, b"x", b"", [], {}, 10**5000, "x" * 513, LONE]
    for bad in unfit:
        with pytest.raises(InvalidKey, match=r"^key function same: "):
            find(bad)


@pytest.mark.parametrize("bad", [True, 1.5, ["x"], {"x": 1}, "x" * 513, LONE])
def test_invalid_ids_are_never_hashed_into_one_key(bad: object) -> None:
    """A present but invalid id is an error even with a fallback, so no two bad messages share a record."""
    with pytest.raises(InvalidKey, match=r"^\$\.id: "):
        extractor("$.id", fallback=content_key(fields=["a"]))({"id": bad, "a": 1})


@pytest.mark.parametrize("made", [None, "", b"x", 1.5])
def test_a_fallback_must_make_a_key_too(made: object) -> None:
    with pytest.raises(InvalidKey, match=r"^fallback of \$\.id: "):
        extractor("$.id", fallback=lambda _: made)({})


def test_a_fallback_that_cannot_tell_raises() -> None:
    with pytest.raises(InvalidKey, match=r"no field \$\.a"):
        extractor("$.id", fallback=content_key(fields=["a"]))({"b": 1})


@given(st.text(max_size=20) | st.integers())
def test_no_two_ids_share_a_key(found: str | int) -> None:
    find = extractor("$.id", fallback=lambda _: "instead")
    assert find({"id": found}) == (str(found) if found != "" else "instead")


# --- looks_like_spec --------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["$.id", "$['id']", "$[0]", "header:message-id", "attr:id", "$.", "header:"])
def test_places_look_like_places(key: str) -> None:
    assert looks_like_spec(key)


@pytest.mark.parametrize(
    "key", ["id", "$", "$5", "headers:x", "billing:header:x", "Header:x", "attribute", ""]
)
def test_keys_do_not_look_like_places(key: str) -> None:
    assert not looks_like_spec(key)


# --- the canonical form -------------------------------------------------------------------------


_exact_integers = st.integers(-(2**53) + 1, 2**53 - 1)
_numbers = _exact_integers | st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)


@given(_values)
@example({"ﬀ": 1, "😀": 2})  # sorted by UTF-16 unit, not by code point
@example({"a": 1e21, "b": 1.0, "c": -0.0})
@example({"control": '\x00\x1f\x7f\u2028"\\/\b\f\n\r\t'})
@settings(max_examples=500, deadline=None, database=None)
def test_content_is_written_as_rfc_8785_has_it(value):
    plain = _Plain(nfc=False, ignore=frozenset())
    whole = plain.whole(value, ())
    assert plain.canonical(whole) == rfc8785.dumps(whole)
