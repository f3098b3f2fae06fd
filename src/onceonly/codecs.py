"""How results become bytes. JSON only by default: readable, portable, and never runs code."""

from __future__ import annotations

import json


class JsonCodec:
    """UTF-8 JSON. Refuses what JSON cannot say (NaN, sets, objects) instead of guessing.

    As JSON has it, tuples come back as lists and dictionary keys as text.
    """

    def encode(self, value: object) -> bytes:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()

    def decode(self, data: bytes) -> object:
        return json.loads(data)
