"""Wrong about who goes next."""

from .mutant import of_turns

WRONG_TURNS = [
    of_turns("a writer is in nobody's way", "    if state.writer:\n        return state.writer.until\n", ""),
    of_turns("readers are not in a writer's way", "if mode is Mode.WRITE and state.readers:", "if False:"),
    of_turns("readers are in a reader's way", "if mode is Mode.WRITE and state.readers:", "if state.readers:"),
    of_turns("retry is when the first reader ends", "max(state.readers.values())", "min(state.readers.values())"),
    of_turns("a turn does not let in", "            if other.turn:\n                return 0\n", ""),
    of_turns(
        "a turn is lost when it lapses",
        "            if other.turn:\n                return 0",
        "            if other.turn and other.called > now:\n                return 0",
    ),
    of_turns("writers do not wait for turns", "if turns and (ahead or mode is Mode.WRITE)", "if turns and ahead"),
    of_turns("readers wait for turns", "if turns and (ahead or mode is Mode.WRITE)", "if turns"),
    of_turns("turns never lapse", "            if other.turn and other.called > now:", "            if other.turn:"),
    of_turns(
        "calls are as good as turns",
        "            if other.turn and other.called > now:",
        "            if other.called > now:",
    ),
    of_turns(
        "waiting writers hold nobody back", "elif not seen and not ahead and not _lapsed(other, now):", "elif False:"
    ),
    of_turns(
        "writers behind hold back too",
        "elif not seen and not ahead and not _lapsed(other, now):",
        "elif not ahead and not _lapsed(other, now):",
    ),
    of_turns(
        "the lapsed hold back",
        "elif not seen and not ahead and not _lapsed(other, now):",
        "elif not seen and not ahead:",
    ),
    of_turns("retry waits for the last writer", "elif not seen and not ahead and", "elif not seen and"),
    of_turns("retry waits for the place of the called", "ahead = other.called or other.until", "ahead = other.until"),
    of_turns(
        "outlook sees dead writers",
        "state.writer if state.writer and state.writer.until > now else None",
        "state.writer",
    ),
    of_turns(
        "outlook sees dead readers",
        "for token, until in state.readers.items() if until > now}",
        "for token, until in state.readers.items()}",
    ),
    of_turns("outlook sees dead seats", "[other for other in state.seats if other.until > now]", "state.seats"),
    of_turns("readers get no turn", "            seat.turn = True\n", "", within="writer_leaves"),
    of_turns("writers get turns", "if seat.mode is Mode.READ:", "if True:", within="writer_leaves"),
    of_turns(
        "turns are not told", "_summon(seat, now, claim, wakes)", "seat.called = now + claim", within="writer_leaves"
    ),
    of_turns("somebody is called under a writer", "    if state.writer:\n        return\n", "", within="call_next"),
    of_turns("readers before a writer are not called", "elif not behind and not seat.called:", "elif False:"),
    of_turns("readers behind a writer are called", "elif not behind and not seat.called:", "elif not seat.called:"),
    of_turns("readers are called again and again", "elif not behind and not seat.called:", "elif not behind:"),
    of_turns(
        "a writer is called again and again",
        "if first is None or first.called or state.readers:",
        "if first is None or state.readers:",
    ),
    of_turns(
        "a writer is called while others read",
        "if first is None or first.called or state.readers:",
        "if first is None or first.called:",
    ),
    of_turns(
        "a writer is called while turns are open",
        "    if turns:\n        wakes.append((first.id, turns))\n    else:\n        turns",
        "    if True:\n        turns",
    ),
    of_turns("nobody is reminded when turns end", "        wakes.append((first.id, turns))\n", "        return\n"),
    of_turns("the second writer has no alarm", "        wakes.append((second.id, turns))", "        pass"),
    of_turns(
        "readers behind have no alarm",
        "        wakes.extend((seat.id, turns) for seat in after if not seat.called)",
        "        pass",
    ),
    of_turns("a grant keeps its seat", "    if not more:\n        give_up(state, seat)\n        return False\n", ""),
    of_turns("more of a seat lose it", "    if not more:\n        give_up", "    if True:\n        give_up"),
    of_turns(
        "more makes a seat out of nothing",
        "            return True\n    return False",
        "            return True\n    return True",
        within="settle",
    ),
    of_turns("a kept seat stays called", "                kept.called = 0\n", "                pass\n"),
    of_turns("readers that keep the turn give up its window", "if kept.mode is Mode.WRITE:", "if True:"),
    of_turns("leaving empties the queue", "[other for other in state.seats if other.id != seat]", "[]"),
    of_turns("leaving leaves the seat", "[other for other in state.seats if other.id != seat]", "state.seats"),
    of_turns("grace is not given", "window = max(claim, seat.grace)", "window = claim"),
    of_turns("the called are not expected", "    seat.called = now + window\n", "    seat.called = 0\n"),
    of_turns("a call lapses one late", "return 0 < seat.called <= now", "return 0 < seat.called < now"),
    of_turns("the uncalled have lapsed", "return 0 < seat.called <= now", "return seat.called <= now"),
    of_turns(
        "a lapsed writer is still the first",
        "if seat.mode is Mode.WRITE and not _lapsed(seat, now)), None)",
        "if seat.mode is Mode.WRITE), None)",
    ),
]
