"""Who goes next: the part of the law that keeps the queue. Only `rules` uses it.

A leaving writer gives every reader's seat that waits its turn, and the next writer waits until those have come or
lapsed. Otherwise a writer's seat holds back readers and writers behind it. So neither can starve.
"""

from grelmicro_fastapi.coordination.state import Mode, Seat, State

Wakes = list[tuple[str, int]]


def blocked_until(state: State, seat: str, mode: Mode, now: int) -> int:
    """Until when somebody stands in the way of this asker, or 0. May be early, never late. The dead are buried."""
    if state.writer:
        return state.writer.until
    if mode is Mode.WRITE and state.readers:
        return max(state.readers.values())
    turns = ahead = 0
    seen = False
    for other in state.seats:
        if other.id == seat:
            if other.turn:
                return 0
            seen = True
        elif other.mode is Mode.READ:
            if other.turn and other.called > now:
                turns = max(turns, other.called)
        elif not seen and not ahead and not _lapsed(other, now):
            ahead = other.called or other.until
    # Turns hold readers back only by way of the writer who waits for them: once they end, asking gets him called.
    return turns if turns and (ahead or mode is Mode.WRITE) else ahead


def outlook(state: State, seat: str, mode: Mode, now: int) -> int:
    """In how many ms time alone could let this seat in; 0 means that it is worth asking now.

    For stores whose waiters look instead of being told. Changes nothing; may be early, never late: early when a dead
    writer is still to be buried, for that gives readers a turn.
    """
    copy = State(
        writer=state.writer if state.writer and state.writer.until > now else None,
        readers={token: until for token, until in state.readers.items() if until > now},
        seats=[other for other in state.seats if other.until > now],
    )
    until = blocked_until(copy, seat, mode, now)
    return until - now if until else 0


def writer_leaves(state: State, now: int, claim: int, wakes: Wakes) -> None:
    """Free the key, and give the readers that wait their turn."""
    state.writer = None
    for seat in state.seats:
        if seat.mode is Mode.READ:
            seat.turn = True
            _summon(seat, now, claim, wakes)


def call_next(state: State, now: int, claim: int, wakes: Wakes) -> None:
    """Wake whoever may enter, and set alarms in case that the called ones do not come.

    An alarm goes to two processes at least, for the one whose turn is next may be dead in both of its seats.
    """
    if state.writer:
        return
    first = _first_writer(state.seats, now)
    turns = 0
    behind = False
    for seat in state.seats:
        if seat is first:
            behind = True
        elif seat.mode is Mode.READ:
            if seat.turn:
                turns = max(turns, seat.called - now)
            elif not behind and not seat.called:
                _summon(seat, now, claim, wakes)
    if first is None or first.called or state.readers:
        return
    if turns:
        wakes.append((first.id, turns))
    else:
        turns = _summon(first, now, claim, wakes)
    after = state.seats[state.seats.index(first) + 1 :]
    if second := _first_writer(after, now):
        wakes.append((second.id, turns))
    else:
        wakes.extend((seat.id, turns) for seat in after if not seat.called)


def settle(state: State, seat: str, more: bool) -> bool:
    """A grant gives the seat up, unless more of its waiters follow. Is it still in the queue?"""
    if not more:
        give_up(state, seat)
        return False
    for kept in state.seats:
        if kept.id == seat:
            if kept.mode is Mode.WRITE:
                # It came. It is called anew when this writer leaves.
                kept.called = 0
            return True
    return False


def give_up(state: State, seat: str) -> None:
    """Take a seat out of the queue."""
    state.seats = [other for other in state.seats if other.id != seat]


def _summon(seat: Seat, now: int, claim: int, wakes: Wakes) -> int:
    window = max(claim, seat.grace)
    seat.called = now + window
    wakes.append((seat.id, 0))
    return window


def _first_writer(seats: list[Seat], now: int) -> Seat | None:
    return next((seat for seat in seats if seat.mode is Mode.WRITE and not _lapsed(seat, now)), None)


def _lapsed(seat: Seat, now: int) -> bool:
    return 0 < seat.called <= now
