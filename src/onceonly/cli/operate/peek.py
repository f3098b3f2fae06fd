"""``onceonly peek``: what the store knows of a key."""

from __future__ import annotations

import sys
import time
from base64 import b64encode

import click

from onceonly.cli.common import Command, Exit, group_option, json_option, needed_group, opened, store_option
from onceonly.cli.operate.acting import identities, keys_argument, scope_option
from onceonly.cli.operate.shown import as_line, blocks, record_object
from onceonly.cli.operate.wording import condition, moment_and_age
from onceonly.types import Record, RecordId


@click.command(cls=Command)
@keys_argument(required=True)
@store_option
@group_option
@scope_option
@click.option("--result", "with_result", is_flag=True, help="Show the stored result, too.")
@json_option
def peek(
    *,
    keys: tuple[str, ...],
    store: str | None,
    group: str | None,
    scope: str | None,
    with_result: bool,
    as_json: bool,
) -> None:
    """Show the record of each KEY. Reads only. Ends with 1 if there is none at all."""
    ids = identities(keys, needed_group(group), scope)
    with opened(store) as found:
        records = found.peek(ids)
    if as_json:
        for record_id, record in zip(ids, records, strict=True):
            as_line(_object(record_id, record, with_result=with_result))
    else:
        now = time.time()
        blocks([_fields(i, r, now, with_result=with_result) for i, r in zip(ids, records, strict=True)])
    sys.exit(Exit.DONE if any(records) else Exit.NOTHING)


def _object(record_id: RecordId, record: Record | None, *, with_result: bool) -> dict[str, object]:
    if record is None:
        return {"group": record_id.group, "scope": record_id.scope, "key": record_id.key, "state": "absent"}
    found = record_object(record)
    if with_result:
        found |= _result(record.result)
    return found


def _result(result: bytes | None) -> dict[str, object]:
    """As text where it is text; a codec may have made anything of it."""
    try:
        return {"result": None if result is None else result.decode()}
    except UnicodeDecodeError:
        return {"result_base64": b64encode(result or b"").decode()}


def _fields(
    record_id: RecordId, record: Record | None, now: float, *, with_result: bool
) -> list[tuple[str, str]]:
    named = [("key", record_id.key), ("group", record_id.group), ("scope", record_id.scope)]
    if record is None:
        return [*named, ("state", "absent")]
    times = {
        "claimed": record.claimed_at,
        "lease until": record.lease_until,
        "not before": record.not_before,
        "done": record.done_at,
        "remembered until": record.expires_at,
    }
    result = "" if record.result is None else f"{len(record.result):,} bytes"
    if with_result and record.result is not None:
        (result,) = (str(value) for value in _result(record.result).values())
    return [
        *named,
        ("state", condition(record).value),
        ("type", record.type or ""),
        ("attempt", f"{record.attempt:,}" if record.attempt else ""),
        ("fence", str(record.fence) if record.fence else ""),
        *((name, moment_and_age(moment, now)) for name, moment in times.items() if moment is not None),
        ("fingerprint", "" if record.fingerprint is None else record.fingerprint.hex()),
        ("result", result),
    ]
