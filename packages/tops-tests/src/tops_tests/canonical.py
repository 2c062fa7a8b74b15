"""One text for one value, so that a digest says whether two values are the same."""

import hashlib
import json


def canonical(value: object) -> str:
    """Sorted keys, no spaces, ASCII; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256(value: object) -> str:
    """Digest of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
