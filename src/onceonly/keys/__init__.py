"""Keys: what they may be, how producers make them, how consumers find them in a message.

A key is text, so that a prefixed key, a UUID and a broker's message id all fit. Keys made here are the
same in every process and version; the marks ``c1`` and ``e1`` in front of hashed ones change if a recipe
ever does. Parts are hashed with their lengths, never joined by a separator, so ``a:b`` + ``c`` is not
``a`` + ``b:c``. Whatever cannot be a key is refused: nothing invalid is hashed into a shared one.
Error messages name fields and types, never a payload.
"""

from onceonly.keys.checking import MAX_KEY_BYTES, check_key, check_keys
from onceonly.keys.content import ContentKey, content_key, fingerprint_bytes, near_duplicate
from onceonly.keys.places import extractor, looks_like_spec
from onceonly.keys.producer import event_key, namespaced, uuid4_key, uuid7_key

__all__ = [
    "MAX_KEY_BYTES",
    "ContentKey",
    "check_key",
    "check_keys",
    "content_key",
    "event_key",
    "extractor",
    "fingerprint_bytes",
    "looks_like_spec",
    "namespaced",
    "near_duplicate",
    "uuid4_key",
    "uuid7_key",
]
