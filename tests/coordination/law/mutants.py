"""Laws that are wrong on purpose. Each changes one place in the source of the real one."""

import inspect
from types import ModuleType
from typing import Any, NamedTuple

from grelmicro_fastapi.coordination import rules, turns

from .key import Law


class Mutant(NamedTuple):
    """A wrong law, named after what it breaks."""

    breaks: str
    room: ModuleType
    right: str
    wrong: str

    def law(self) -> Law:
        """Read both rooms anew, with one place changed."""
        queue = _read(turns, self.right, self.wrong) if self.room is turns else vars(turns)
        law = _read(rules, self.right, self.wrong) if self.room is rules else _read(rules)
        law.update({name: queue[name] for name in law if name in queue and inspect.isfunction(queue[name])})
        return Law(law["step"], queue["outlook"])


def _read(room: ModuleType, right: str = "", wrong: str = "") -> dict[str, Any]:
    source = inspect.getsource(room)
    if right:
        if source.count(right) != 1:
            raise LookupError(f"{right!r} is {source.count(right)} times in {room.__name__}: this mutant needs care")
        source = source.replace(right, wrong)
    names: dict[str, Any] = {"__name__": f"a mutant of {room.__name__}"}
    exec(compile(source, names["__name__"], "exec"), names)
    return names


def _of_rules(breaks: str, right: str, wrong: str) -> Mutant:
    return Mutant(breaks, rules, right, wrong)


def _of_turns(breaks: str, right: str, wrong: str) -> Mutant:
    return Mutant(breaks, turns, right, wrong)


MUTANTS = [
    _of_rules("a newer law is guessed at", "state.version > VERSION", "state.version > VERSION + 1"),
    _of_rules(
        "the queue sleeps", "    if state.seats:\n        call_next", "    if not state.seats:\n        call_next"
    ),
    _of_rules("nobody is told", "reply._replace(wakes=tuple(wakes))", "reply"),
    _of_rules("a refusal does not say when", "reply.verdict is Verdict.HELD and", "False and"),
    _of_rules("a writer outlives its lease", "writer.until <= now", "writer.until < now"),
    _of_rules("readers outlive their lease", "if until <= now]", "if until < now]"),
    _of_rules("a place outlives its end", "any(seat.until <= now", "any(seat.until < now"),
    _of_rules(
        "burial throws living seats out", "if seat.until > now]\n    writer", "if seat.until > now + 999]\n    writer"
    ),
    _of_rules("graves never close", "(state.readers, state.graves)", "(state.readers,)"),
    _of_rules("dead readers hold on", "(state.readers, state.graves)", "(state.graves,)"),
    _of_rules(
        "the dead leave no word",
        " or bool(writer.token)\n        writer_leaves(state, now, claim, wakes)\n    return",
        "\n        writer_leaves(state, now, claim, wakes)\n    return",
    ),
    _of_rules(
        "a cooldown dies of something",
        "bool(writer.token)\n        writer_leaves(state, now, claim, wakes)\n    return",
        "True\n        writer_leaves(state, now, claim, wakes)\n    return",
    ),
    _of_rules(
        "a dead writer gives no turns",
        "bool(writer.token)\n        writer_leaves(state, now, claim, wakes)\n    return",
        "bool(writer.token)\n        state.writer = None\n    return",
    ),
    _of_rules("graves refuse nobody", "if token in state.graves:", "if False:"),
    _of_rules("a resend is a new grant", "    if writes or token in state.readers:", "    if token in state.readers:"),
    _of_rules("a resent read is a new grant", "    if writes or token in state.readers:", "    if writes:"),
    _of_rules("an attempt changes its mode", "if writes is not (mode is Mode.WRITE):", "if False:"),
    _of_rules("expect is not heard", "if ask.expect is not None and", "if False and"),
    _of_rules("generation nought is no expectation", "if ask.expect is not None and", "if ask.expect and"),
    _of_rules(
        "expect overlooks poison", "(state.fence != ask.expect or state.poisoned)", "(state.fence != ask.expect)"
    ),
    _of_rules(
        "a mismatch takes a place",
        "return Reply(Verdict.MISMATCH, state.fence, state.poisoned)",
        "return _refuse(state, ask, now, claim)._replace(verdict=Verdict.MISMATCH, poisoned=state.poisoned)",
    ),
    _of_rules("everybody may enter", "if blocked_until(state, ask.seat, mode, now):", "if False:"),
    _of_rules("the fence stands still", "state.fence += 1", "state.fence += 0"),
    _of_rules("the fence jumps", "state.fence += 1", "state.fence += 2"),
    _of_rules(
        "readers raise the fence",
        "state.readers[token] = now + ask.ttl",
        "state.readers[token] = now + ask.ttl\n        state.fence += 1",
    ),
    _of_rules(
        "the writer does not take the poison over", "now + ask.ttl, ask.note, poisoned)", "now + ask.ttl, ask.note)"
    ),
    _of_rules(
        "the flag stays when a writer takes it over",
        "ask.note, poisoned)\n        state.poisoned = False",
        "ask.note, poisoned)",
    ),
    _of_rules(
        "a read ends the poison",
        "state.readers[token] = now + ask.ttl",
        "state.readers[token] = now + ask.ttl\n        state.poisoned = False",
    ),
    _of_rules(
        "a grant does not say that it is poisoned",
        "Reply(Verdict.GRANTED, state.fence, poisoned, 0, _settle",
        "Reply(Verdict.GRANTED, state.fence, False, 0, _settle",
    ),
    _of_rules(
        "a grant does not touch",
        "    state.touched = now\n    return Reply(Verdict.GRANTED, state.fence, poisoned",
        "    return Reply(Verdict.GRANTED, state.fence, poisoned",
    ),
    _of_rules(
        "a resend shortens the lease",
        "writer.until = max(writer.until, now + ask.ttl)\n        return Reply(Verdict.GRANTED, state.fence, writer.poisoned, 0",
        "writer.until = now + ask.ttl\n        return Reply(Verdict.GRANTED, state.fence, writer.poisoned, 0",
    ),
    _of_rules("a resend forgets the poison", "writer.poisoned, 0, _settle", "state.poisoned, 0, _settle"),
    _of_rules(
        "a grant keeps its seat", "    if not ask.more:\n        give_up(state, ask.seat)\n        return False\n", ""
    ),
    _of_rules("more of a seat lose it", "    if not ask.more:\n        give_up", "    if True:\n        give_up"),
    _of_rules(
        "more makes a seat out of nothing", "return any(seat.id == ask.seat for seat in state.seats)", "return True"
    ),
    _of_rules(
        "a refusal without a seat leaves one",
        "    if not ask.seat:\n        return Reply(Verdict.HELD",
        "    if False:\n        return Reply(Verdict.HELD",
    ),
    _of_rules("a place is not refreshed", "seat.until = now + ask.place\n", "pass\n"),
    _of_rules("a slow process never gets longer", "if 0 < seat.called <= now:", "if False:"),
    _of_rules("grace without a lapse", "if 0 < seat.called <= now:", "if 0 < seat.called:"),
    _of_rules("grace does not double", "min(2 * max(claim, seat.grace), ask.place)", "min(2 * claim, ask.place)"),
    _of_rules("grace knows no bound", "min(2 * max(claim, seat.grace), ask.place)", "2 * max(claim, seat.grace)"),
    _of_rules("a lapsed seat that asks stays lapsed", "            seat.called = 0\n", ""),
    _of_rules(
        "who asks again goes to the end",
        "            seat.called = 0\n            break",
        "            seat.called = 0\n            state.seats.remove(seat)\n            state.seats.append(seat)\n            break",
    ),
    _of_rules("newcomers go first", "state.seats.append(Seat(ask.seat", "state.seats.insert(0, Seat(ask.seat"),
    _of_rules(
        "renew shortens",
        "writer.until = max(writer.until, now + ask.ttl)\n        return Reply(Verdict.GRANTED, state.fence, writer.poisoned)",
        "writer.until = now + ask.ttl\n        return Reply(Verdict.GRANTED, state.fence, writer.poisoned)",
    ),
    _of_rules(
        "renew revives",
        "        return _stay(state, ask.token, ask.ttl, now)\n    return Reply(Verdict.GONE, state.fence)\n\n\ndef _stay",
        "        return _stay(state, ask.token, ask.ttl, now)\n    state.readers[ask.token] = now + ask.ttl\n    return Reply(Verdict.GONE, state.fence)\n\n\ndef _stay",
    ),
    _of_rules("a reader's renewal shortens", "max(state.readers[token], now + ttl)", "now + ttl"),
    _of_rules(
        "a downgrade shortens",
        "state.readers[ask.token] = max(writer.until, now + ask.ttl)",
        "state.readers[ask.token] = now + ask.ttl",
    ),
    _of_rules("a downgrade leaves a gap", "state.readers[ask.token] = max(writer.until, now + ask.ttl)", "pass"),
    _of_rules(
        "a downgrade leaves the writer in",
        "        writer_leaves(state, now, claim, wakes)\n        return Reply(Verdict.GRANTED, state.fence, state.poisoned)",
        "        return Reply(Verdict.GRANTED, state.fence, state.poisoned)",
    ),
    _of_rules(
        "a downgrade keeps the poison",
        "        writer_leaves(state, now, claim, wakes)\n        return Reply(Verdict.GRANTED, state.fence, state.poisoned)",
        "        state.poisoned = writer.poisoned\n        writer_leaves(state, now, claim, wakes)\n        return Reply(Verdict.GRANTED, state.fence, state.poisoned)",
    ),
    _of_rules(
        "a second downgrade is refused",
        "    if ask.token in state.readers:\n        return _stay(state, ask.token, ask.ttl, now)\n    return Reply(Verdict.GONE, state.fence)\n\n\ndef _release",
        "    return Reply(Verdict.GONE, state.fence)\n\n\ndef _release",
    ),
    _of_rules(
        "anybody may release",
        "    if writer and writer.token == ask.token:\n        if ask.poison",
        "    if writer:\n        if ask.poison",
    ),
    _of_rules(
        "an error does not keep the poison", "if ask.poison is not Poison.CLEAR:", "if ask.poison is Poison.SET:"
    ),
    _of_rules("an error poisons", "ask.poison is Poison.SET or writer.poisoned", "True"),
    _of_rules("a word does not poison", "ask.poison is Poison.SET or writer.poisoned", "writer.poisoned"),
    _of_rules("no min hold", "if ask.min_hold and writer.since", "if False and writer.since"),
    _of_rules(
        "min hold is counted from the release",
        'Writer("", writer.since, writer.since + ask.min_hold)',
        'Writer("", writer.since, now + ask.min_hold)',
    ),
    _of_rules("a cooldown has an owner", 'Writer("", writer.since', "Writer(writer.token, writer.since"),
    _of_rules(
        "a release does not touch",
        "    state.touched = now\n    return Reply(Verdict.GRANTED, state.fence)\n\n\ndef _undo",
        "    return Reply(Verdict.GRANTED, state.fence)\n\n\ndef _undo",
    ),
    _of_rules("undo digs no grave", "state.graves[token] = now + GRAVE", "pass"),
    _of_rules("graves are shallow", "state.graves[token] = now + GRAVE", "state.graves[token] = now + GRAVE // 3"),
    _of_rules("undo loses the poison", "state.poisoned = state.writer.poisoned", "pass"),
    _of_rules("undo poisons", "state.poisoned = state.writer.poisoned", "state.poisoned = True"),
    _of_rules(
        "undo forgets readers",
        "    elif token in state.readers:\n        del state.readers[token]\n    else:\n        return Reply(Verdict.GONE, state.fence)\n    return",
        "    else:\n        return Reply(Verdict.GONE, state.fence)\n    return",
    ),
    _of_rules("undo takes any writer back", "if state.writer and state.writer.token == token:", "if state.writer:"),
    _of_rules("a tick is claimed twice", "if to <= state.fence:", "if to < state.fence:"),
    _of_rules("a tick is claimed ahead of time", "if to > now:", "if False:"),
    _of_rules("a claimed tick is not confirmed", "if to == state.fence and token == state.claimant:", "if False:"),
    _of_rules(
        "a claimed tick is confirmed to anybody",
        "if to == state.fence and token == state.claimant:",
        "if to == state.fence:",
    ),
    _of_rules(
        "force does not poison",
        "        state.poisoned = state.poisoned or bool(writer.token)\n        writer_leaves(state, now, claim, wakes)\n    state.touched",
        "        writer_leaves(state, now, claim, wakes)\n    state.touched",
    ),
    _of_rules("force spares readers", "    state.readers.clear()\n", ""),
    _of_rules("mend overlooks the writer", "        state.writer.poisoned = False", "        pass"),
    _of_rules("mend overlooks the flag", "    state.poisoned = False\n    if state.writer:", "    if state.writer:"),
    _of_rules("purge drops a poisoned name", " or state.poisoned or state.claimant", " or state.claimant"),
    _of_rules("purge drops a claimed tick", " or state.poisoned or state.claimant", " or state.poisoned"),
    _of_rules("purge drops a name with graves", "or state.graves or", "or"),
    _of_rules("purge drops a name in use", "idles = not used and", "idles ="),
    _of_rules("purge does not wait", "state.touched + idle <= now", "True"),
    _of_turns("a writer is in nobody's way", "    if state.writer:\n        return state.writer.until\n", ""),
    _of_turns("readers are not in a writer's way", "if mode is Mode.WRITE and state.readers:", "if False:"),
    _of_turns("readers are in a reader's way", "if mode is Mode.WRITE and state.readers:", "if state.readers:"),
    _of_turns("retry is when the first reader ends", "max(state.readers.values())", "min(state.readers.values())"),
    _of_turns("a turn does not let in", "            if other.turn:\n                return 0\n", ""),
    _of_turns(
        "a turn is lost when it lapses",
        "            if other.turn:\n                return 0",
        "            if other.turn and other.called > now:\n                return 0",
    ),
    _of_turns("writers do not wait for turns", "if turns and (ahead or mode is Mode.WRITE)", "if turns and ahead"),
    _of_turns("readers wait for turns", "if turns and (ahead or mode is Mode.WRITE)", "if turns"),
    _of_turns("turns never lapse", "            if other.turn and other.called > now:", "            if other.turn:"),
    _of_turns(
        "calls are as good as turns",
        "            if other.turn and other.called > now:",
        "            if other.called > now:",
    ),
    _of_turns(
        "waiting writers hold nobody back", "elif not seen and not ahead and not _lapsed(other, now):", "elif False:"
    ),
    _of_turns(
        "writers behind hold back too",
        "elif not seen and not ahead and not _lapsed(other, now):",
        "elif not ahead and not _lapsed(other, now):",
    ),
    _of_turns(
        "the lapsed hold back",
        "elif not seen and not ahead and not _lapsed(other, now):",
        "elif not seen and not ahead:",
    ),
    _of_turns("retry waits for the last writer", "elif not seen and not ahead and", "elif not seen and"),
    _of_turns("retry waits for the place of the called", "ahead = other.called or other.until", "ahead = other.until"),
    _of_turns(
        "outlook sees dead writers",
        "state.writer if state.writer and state.writer.until > now else None",
        "state.writer",
    ),
    _of_turns(
        "outlook sees dead readers",
        "for token, until in state.readers.items() if until > now}",
        "for token, until in state.readers.items()}",
    ),
    _of_turns("outlook sees dead seats", "[other for other in state.seats if other.until > now]", "state.seats"),
    _of_turns("readers get no turn", "            seat.turn = True\n", ""),
    _of_turns(
        "writers get turns",
        "    for seat in state.seats:\n        if seat.mode is Mode.READ:\n            seat.turn = True",
        "    for seat in state.seats:\n        if True:\n            seat.turn = True",
    ),
    _of_turns(
        "turns are not told",
        "            seat.turn = True\n            _summon(seat, now, claim, wakes)",
        "            seat.turn = True\n            seat.called = now + claim",
    ),
    _of_turns("somebody is called under a writer", "    if state.writer:\n        return\n    first", "    first"),
    _of_turns("readers before a writer are not called", "elif not behind and not seat.called:", "elif False:"),
    _of_turns("readers behind a writer are called", "elif not behind and not seat.called:", "elif not seat.called:"),
    _of_turns("readers are called again and again", "elif not behind and not seat.called:", "elif not behind:"),
    _of_turns(
        "a writer is called again and again",
        "if first is None or first.called or state.readers:",
        "if first is None or state.readers:",
    ),
    _of_turns(
        "a writer is called while others read",
        "if first is None or first.called or state.readers:",
        "if first is None or first.called:",
    ),
    _of_turns(
        "a writer is called while turns are open",
        "    if turns:\n        wakes.append((first.id, turns))\n    else:\n        turns",
        "    if True:\n        turns",
    ),
    _of_turns("nobody is reminded when turns end", "        wakes.append((first.id, turns))\n", "        return\n"),
    _of_turns("the second writer has no alarm", "        wakes.append((second.id, turns))", "        pass"),
    _of_turns(
        "readers behind have no alarm",
        "        wakes.extend((seat.id, turns) for seat in after if not seat.called)",
        "        pass",
    ),
    _of_turns("leaving empties the queue", "[other for other in state.seats if other.id != seat]", "[]"),
    _of_turns("leaving leaves the seat", "[other for other in state.seats if other.id != seat]", "state.seats"),
    _of_turns("grace is not given", "window = max(claim, seat.grace)", "window = claim"),
    _of_turns("the called are not expected", "    seat.called = now + window\n", "    seat.called = 0\n"),
    _of_turns("a call lapses one late", "return 0 < seat.called <= now", "return 0 < seat.called < now"),
    _of_turns("the uncalled have lapsed", "return 0 < seat.called <= now", "return seat.called <= now"),
    _of_turns(
        "a lapsed writer is still the first",
        "if seat.mode is Mode.WRITE and not _lapsed(seat, now)), None)",
        "if seat.mode is Mode.WRITE), None)",
    ),
]
