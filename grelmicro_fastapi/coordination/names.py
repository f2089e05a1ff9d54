"""Names, and the keys made of them."""

import re

LOCK = "lock:"
READWRITELOCK = "rwlock:"
TASKLOCK = "tasklock:"
LEADER = "leader:"
TICK = "tick:"

_LONGEST = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(name: object) -> str:
    """Return the name, or raise `ValueError`: 1 to 512 bytes of UTF-8 without control characters."""
    if not isinstance(name, str):
        raise ValueError(f"a lock's name is text: {name!r} is of type {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("a lock's name must be valid Unicode: it holds a lone surrogate") from None
    if not 0 < size <= _LONGEST:
        raise ValueError(f"a lock's name has 1 to {_LONGEST} bytes of UTF-8, this one has {size}: hash what is longer")
    if _CONTROL.search(name):
        raise ValueError(f"a lock's name has no control characters: {name!r} does")
    return name
