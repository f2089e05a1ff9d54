"""Wrong about who gets what, and for how long."""

from .mutant import of_rules

WRONG_GRANTS = [
    of_rules("a newer law is guessed at", "state.version > VERSION", "state.version > VERSION + 1"),
    of_rules(
        "the queue sleeps", "    if state.seats:\n        call_next", "    if not state.seats:\n        call_next"
    ),
    of_rules("nobody is told", "reply._replace(wakes=tuple(wakes))", "reply"),
    of_rules("a refusal does not say when", "reply.verdict is Verdict.HELD and", "False and"),
    of_rules("a writer outlives its lease", "writer.until <= now", "writer.until < now"),
    of_rules("readers outlive their lease", "if until <= now]", "if until < now]"),
    of_rules("a place outlives its end", "any(seat.until <= now", "any(seat.until < now"),
    of_rules("burial throws living seats out", "if seat.until > now]", "if seat.until > now + 999]", within="_bury"),
    of_rules("graves never close", "(state.readers, state.graves)", "(state.readers,)"),
    of_rules("dead readers hold on", "(state.readers, state.graves)", "(state.graves,)"),
    of_rules("the dead leave no word", "state.poisoned or bool(writer.token)", "state.poisoned", within="_bury"),
    of_rules("a cooldown dies of something", "bool(writer.token)", "True", within="_bury"),
    of_rules(
        "a dead writer gives no turns", "writer_leaves(state, now, claim, wakes)", "state.writer = None", within="_bury"
    ),
    of_rules("graves refuse nobody", "if token in state.graves:", "if False:"),
    of_rules("a resend is a new grant", "    if writes or token in state.readers:", "    if token in state.readers:"),
    of_rules("a resent read is a new grant", "    if writes or token in state.readers:", "    if writes:"),
    of_rules("an attempt changes its mode", "if writes is not (mode is Mode.WRITE):", "if False:"),
    of_rules("expect is not heard", "if expect is not None and", "if False and"),
    of_rules("generation nought is no expectation", "if expect is not None and", "if expect and"),
    of_rules("expect overlooks poison", "(state.fence != expect or state.poisoned)", "(state.fence != expect)"),
    of_rules(
        "a mismatch takes a place",
        "return Reply(Verdict.MISMATCH, state.fence, state.poisoned)",
        "_refuse(state, ask, now, claim)\n        return Reply(Verdict.MISMATCH, state.fence, state.poisoned)",
    ),
    of_rules("everybody may enter", "blocked_until(state, seat, mode, now):", "False:"),
    of_rules("the fence stands still", "state.fence += 1", "state.fence += 0"),
    of_rules("the fence jumps", "state.fence += 1", "state.fence += 2"),
    of_rules(
        "readers raise the fence",
        "state.readers[token] = now + ttl",
        "state.readers[token] = now + ttl\n        state.fence += 1",
    ),
    of_rules("the writer does not take the poison over", "now + ttl, note, poisoned)", "now + ttl, note)"),
    of_rules(
        "the flag stays when a writer takes it over",
        "note, poisoned)\n        state.poisoned = False",
        "note, poisoned)",
    ),
    of_rules(
        "a read ends the poison",
        "state.readers[token] = now + ttl",
        "state.readers[token] = now + ttl\n        state.poisoned = False",
    ),
    of_rules(
        "a grant does not say that it is poisoned",
        "made_reply((Verdict.GRANTED, state.fence, poisoned, 0,",
        "made_reply((Verdict.GRANTED, state.fence, False, 0,",
    ),
    of_rules("a grant does not touch", "    state.touched = now\n", "", within="_acquire"),
    of_rules("a resend shortens the lease", "max(writer.until, now + ask.ttl)", "now + ask.ttl", within="_confirm"),
    of_rules("a resend forgets the poison", "writer.poisoned, 0, settle", "state.poisoned, 0, settle"),
    of_rules(
        "a refusal without a seat leaves one",
        "    if not ask.seat:\n        return Reply(Verdict.HELD",
        "    if False:\n        return Reply(Verdict.HELD",
    ),
    of_rules("a place is not refreshed", "seat.until = now + ask.place\n", "pass\n"),
    of_rules("a slow process never gets longer", "if 0 < seat.called <= now:", "if False:"),
    of_rules("grace without a lapse", "if 0 < seat.called <= now:", "if 0 < seat.called:"),
    of_rules("grace does not double", "min(2 * max(claim, seat.grace), ask.place)", "min(2 * claim, ask.place)"),
    of_rules("grace knows no bound", "min(2 * max(claim, seat.grace), ask.place)", "2 * max(claim, seat.grace)"),
    of_rules("a lapsed seat that asks stays lapsed", "            seat.called = 0\n", ""),
    of_rules(
        "who asks again goes to the end",
        "            break",
        "            state.seats.remove(seat)\n            state.seats.append(seat)\n            break",
        within="_refuse",
    ),
    of_rules("newcomers go first", "state.seats.append(Seat(ask.seat", "state.seats.insert(0, Seat(ask.seat"),
    of_rules("renew shortens", "max(writer.until, now + ask.ttl)", "now + ask.ttl", within="_renew"),
    of_rules(
        "renew revives",
        "    return Reply(Verdict.GONE, state.fence)",
        "    state.readers[ask.token] = now + ask.ttl\n    return Reply(Verdict.GONE, state.fence)",
        within="_renew",
    ),
    of_rules("a reader's renewal shortens", "max(state.readers[token], now + ttl)", "now + ttl"),
]
