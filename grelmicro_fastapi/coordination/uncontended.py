"""The law's short way, for where nobody is in the way: most holds are taken and given back alone, or by readers.

It says what the law says, sooner; where it cannot, it says nothing. `rules.step` is what it is measured by.
"""

from grelmicro_fastapi.coordination.state import (
    Acquire,
    Command,
    Mode,
    Poison,
    Release,
    Reply,
    State,
    Verdict,
    Writer,
    made_reply,
)

Found = tuple[int, bool]
"""What a lease found when it was granted: its fence, and whether the resource is poisoned."""

LEFT = Reply(Verdict.GRANTED, 0)
"""The reply to a Release that went the short way, for those who do not need its fence."""


def alone(state: State, command: Command, now: int) -> Reply | None:
    """Let somebody in or out where nobody waits and nobody has died.

    None, and nothing was done: the whole law is needed.
    """
    # By class, for a pattern costs several times as much.
    if isinstance(command, Acquire):
        token, mode, ttl, _, _, _, expect, note = command
        found = enters(state, now, token, mode, ttl, note) if expect is None else None
        return made_reply((Verdict.GRANTED, *found, 0, False, ())) if found else None
    if isinstance(command, Release):
        # Only of a writer anything stays, or is said.
        whole = not state.writer or (not command.min_hold and command.poison is Poison.CLEAR)
        if whole and leaves(state, now, command.token):
            return made_reply((Verdict.GRANTED, state.fence, False, 0, False, ()))
    return None


def enters(state: State, now: int, token: str, mode: Mode, ttl: int, note: str) -> Found | None:
    """Let somebody in where nobody is, or one more reader. None, and nothing was done, elsewhere."""
    if state.writer or state.seats or state.graves:
        return None
    readers, poisoned = state.readers, state.poisoned
    if readers and (mode is Mode.WRITE or token in readers or min(readers.values()) <= now):
        return None
    if mode is Mode.WRITE:
        state.fence += 1
        state.writer, state.poisoned = Writer(token, now, now + ttl, note, poisoned), False
    else:
        readers[token] = now + ttl
    state.touched = now
    return state.fence, poisoned


def leaves(state: State, now: int, token: str) -> bool:
    """Let a reader out, or the writer who leaves it whole and at once. False, and nothing was done, elsewhere."""
    if state.seats or state.graves:
        return False
    writer, readers = state.writer, state.readers
    if writer:
        if writer.token != token or writer.until <= now:
            return False
        state.writer = None
    elif token not in readers or min(readers.values()) <= now:
        return False
    else:
        del readers[token]
    state.touched = now
    return True
