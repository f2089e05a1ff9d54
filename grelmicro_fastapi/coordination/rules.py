"""The law: one function that advances a state. Nothing else in the house decides who may hold what.

It is ported to where the data lives (`redis.lua`, `postgres.sql`); the differential suite keeps the ports equal.
"""

from typing import assert_never

from grelmicro_fastapi.coordination.state import (
    CLAIM,
    GRAVE,
    VERSION,
    Acquire,
    Advance,
    Command,
    Downgrade,
    Force,
    Leave,
    Mend,
    Mode,
    Poison,
    Purge,
    Release,
    Renew,
    Reply,
    Seat,
    State,
    Undo,
    Vacate,
    Verdict,
    Writer,
    made_reply,
)
from grelmicro_fastapi.coordination.turns import Wakes, blocked_until, call_next, give_up, settle, writer_leaves
from grelmicro_fastapi.coordination.uncontended import alone


def step(state: State, command: Command, now: int, claim: int = CLAIM) -> Reply:
    """Advance `state` in place and say what became of the command.

    `now` is the store's clock and `claim` the window for seats called in this step, both in ms.
    """
    if state.version > VERSION:
        return Reply(Verdict.NEWER, 0)
    if short := alone(state, command, now):
        return short
    wakes: Wakes = []
    mortal = state.writer or state.readers or state.seats or state.graves
    buried = bool(mortal) and _bury(state, now, claim, wakes)
    match command:
        case Acquire():
            reply = _acquire(state, command, now, claim)
        case Release():
            reply = _release(state, command, now, claim, wakes)
        case Renew():
            reply = _renew(state, command, now)
        case Downgrade():
            reply = _downgrade(state, command, now, claim, wakes)
        case Undo(token):
            reply = _undo(state, token, now, claim, wakes)
        case Leave(seat):
            give_up(state, seat)
            reply = Reply(Verdict.GRANTED, state.fence)
        case Advance(token, to):
            reply = _advance(state, token, to, now)
        case Force():
            reply = _force(state, now, claim, wakes)
        case Mend():
            reply = _mend(state, now)
        case Vacate():
            reply = Reply(Verdict.GRANTED if buried else Verdict.GONE, state.fence)
        case Purge(idle):
            reply = _purge(state, idle, now)
        case _:
            assert_never(command)
    if state.seats:
        call_next(state, now, claim, wakes)
    elif not wakes and reply.verdict is Verdict.GRANTED:
        return reply
    if reply.verdict is Verdict.HELD and isinstance(command, Acquire):
        reply = reply._replace(retry=max(0, blocked_until(state, command.seat, command.mode, now) - now))
    return reply._replace(wakes=tuple(wakes)) if wakes else reply


def _bury(state: State, now: int, claim: int, wakes: Wakes) -> bool:
    buried = False
    for leases in (state.readers, state.graves):
        if leases and min(leases.values()) <= now:
            buried = True
            for token in [token for token, until in leases.items() if until <= now]:
                del leases[token]
    if state.seats and any(seat.until <= now for seat in state.seats):
        buried = True
        state.seats = [seat for seat in state.seats if seat.until > now]
    writer = state.writer
    if writer and writer.until <= now:
        buried = True
        # A dead writer leaves word: the next one must learn that it died. A cooldown is nobody, and died of nothing.
        state.poisoned = state.poisoned or bool(writer.token)
        writer_leaves(state, now, claim, wakes)
    return buried


def _acquire(state: State, ask: Acquire, now: int, claim: int) -> Reply:
    token, mode, ttl, seat, _, more, expect, note = ask
    if token in state.graves:
        return Reply(Verdict.BURIED, state.fence)
    writer = state.writer
    writes = writer is not None and writer.token == token
    if writes or token in state.readers:
        if writes is not (mode is Mode.WRITE):
            return Reply(Verdict.HELD, state.fence)
        return _confirm(state, ask, now)
    if expect is not None and (state.fence != expect or state.poisoned):
        return Reply(Verdict.MISMATCH, state.fence, state.poisoned)
    if (writer or state.readers or state.seats) and blocked_until(state, seat, mode, now):
        return _refuse(state, ask, now, claim)
    poisoned = state.poisoned
    if mode is Mode.WRITE:
        state.fence += 1
        state.writer = Writer(token, now, now + ttl, note, poisoned)
        state.poisoned = False
    else:
        state.readers[token] = now + ttl
    state.touched = now
    seated = bool(state.seats) and settle(state, seat, more)
    return made_reply((Verdict.GRANTED, state.fence, poisoned, 0, seated, ()))


def _confirm(state: State, ask: Acquire, now: int) -> Reply:
    writer = state.writer
    if writer and ask.mode is Mode.WRITE:
        writer.until = max(writer.until, now + ask.ttl)
        return Reply(Verdict.GRANTED, state.fence, writer.poisoned, 0, settle(state, ask.seat, ask.more))
    return _stay(state, ask.token, ask.ttl, now)._replace(seated=settle(state, ask.seat, ask.more))


def _refuse(state: State, ask: Acquire, now: int, claim: int) -> Reply:
    if not ask.seat:
        return Reply(Verdict.HELD, state.fence)
    for seat in state.seats:
        if seat.id == ask.seat:
            seat.until = now + ask.place
            if 0 < seat.called <= now:
                seat.grace = min(2 * max(claim, seat.grace), ask.place)
            seat.called = 0
            break
    else:
        state.seats.append(Seat(ask.seat, ask.mode, now + ask.place))
    return Reply(Verdict.HELD, state.fence, seated=True)


def _renew(state: State, ask: Renew, now: int) -> Reply:
    writer = state.writer
    if writer and writer.token == ask.token:
        writer.until = max(writer.until, now + ask.ttl)
        return Reply(Verdict.GRANTED, state.fence, writer.poisoned)
    if ask.token in state.readers:
        return _stay(state, ask.token, ask.ttl, now)
    return Reply(Verdict.GONE, state.fence)


def _stay(state: State, token: str, ttl: int, now: int) -> Reply:
    state.readers[token] = max(state.readers[token], now + ttl)
    return Reply(Verdict.GRANTED, state.fence, state.poisoned)


def _downgrade(state: State, ask: Downgrade, now: int, claim: int, wakes: Wakes) -> Reply:
    writer = state.writer
    if writer and writer.token == ask.token:
        state.readers[ask.token] = max(writer.until, now + ask.ttl)
        state.touched = now
        writer_leaves(state, now, claim, wakes)
        return Reply(Verdict.GRANTED, state.fence, state.poisoned)
    if ask.token in state.readers:
        return _stay(state, ask.token, ask.ttl, now)
    return Reply(Verdict.GONE, state.fence)


def _release(state: State, ask: Release, now: int, claim: int, wakes: Wakes) -> Reply:
    writer = state.writer
    if writer and writer.token == ask.token:
        if ask.poison is not Poison.CLEAR:
            state.poisoned = ask.poison is Poison.SET or writer.poisoned
        if ask.min_hold and writer.since + ask.min_hold > now:
            state.writer = Writer("", writer.since, writer.since + ask.min_hold)
        else:
            writer_leaves(state, now, claim, wakes)
    elif ask.token in state.readers:
        del state.readers[ask.token]
    else:
        return Reply(Verdict.GONE, state.fence)
    state.touched = now
    return made_reply((Verdict.GRANTED, state.fence, False, 0, False, ()))


def _undo(state: State, token: str, now: int, claim: int, wakes: Wakes) -> Reply:
    state.graves[token] = now + GRAVE
    state.touched = now
    if state.writer and state.writer.token == token:
        state.poisoned = state.writer.poisoned
        writer_leaves(state, now, claim, wakes)
    elif token in state.readers:
        del state.readers[token]
    else:
        return Reply(Verdict.GONE, state.fence)
    return Reply(Verdict.GRANTED, state.fence)


def _advance(state: State, token: str, to: int, now: int) -> Reply:
    if to == state.fence and token == state.claimant:
        return Reply(Verdict.GRANTED, state.fence)
    if to > now:
        return Reply(Verdict.EARLY, state.fence)
    if to <= state.fence:
        return Reply(Verdict.LATE, state.fence)
    state.fence, state.claimant, state.touched = to, token, now
    return Reply(Verdict.GRANTED, state.fence)


def _force(state: State, now: int, claim: int, wakes: Wakes) -> Reply:
    writer = state.writer
    if not writer and not state.readers:
        return Reply(Verdict.GONE, state.fence)
    state.readers.clear()
    if writer:
        state.poisoned = state.poisoned or bool(writer.token)
        writer_leaves(state, now, claim, wakes)
    state.touched = now
    return Reply(Verdict.GRANTED, state.fence)


def _mend(state: State, now: int) -> Reply:
    state.poisoned = False
    if state.writer:
        state.writer.poisoned = False
    state.touched = now
    return Reply(Verdict.GRANTED, state.fence)


def _purge(state: State, idle: int, now: int) -> Reply:
    # A claimed tick stays: without its fence it could be claimed twice, and its fence, a time, is no floor for others.
    used = state.writer or state.readers or state.seats or state.graves or state.poisoned or state.claimant
    idles = not used and state.touched + idle <= now
    return Reply(Verdict.GRANTED if idles else Verdict.HELD, state.fence)
