"""The law's short way, for what nobody else wants: most holds are taken and given back alone.

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


def alone(state: State, command: Command, now: int) -> Reply | None:
    """Let somebody in where nobody is, or the only one out. None, and nothing was done: the whole law is needed.

    Where anybody waits, or has died, or may not come back, there is more to do than this.
    """
    writer, readers, poisoned = state.writer, state.readers, False
    if state.seats or state.graves:
        return None
    # By class, for a pattern costs several times as much.
    if isinstance(command, Acquire):
        if writer or readers or command.expect is not None:
            return None
        token, until, poisoned = command.token, now + command.ttl, state.poisoned
        if command.mode is Mode.WRITE:
            state.fence += 1
            state.writer, state.poisoned = Writer(token, now, until, command.note, poisoned), False
        else:
            readers[token] = until
    elif not isinstance(command, Release):
        return None
    elif writer:
        if writer.token != command.token or writer.until <= now:
            return None
        if command.min_hold or command.poison is not Poison.CLEAR:
            return None
        state.writer = None
    elif len(readers) == 1 and readers.get(command.token, now) > now:
        readers.clear()
    else:
        return None
    state.touched = now
    return made_reply((Verdict.GRANTED, state.fence, poisoned, 0, False, ()))
