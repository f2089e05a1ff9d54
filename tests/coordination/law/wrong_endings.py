"""Wrong about what is left when a hold ends, and about the operator's commands."""

from .mutant import of_rules

WRONG_ENDINGS = [
    of_rules(
        "a downgrade shortens",
        "state.readers[ask.token] = max(writer.until, now + ask.ttl)",
        "state.readers[ask.token] = now + ask.ttl",
    ),
    of_rules("a downgrade leaves a gap", "state.readers[ask.token] = max(writer.until, now + ask.ttl)", "pass"),
    of_rules(
        "a downgrade leaves the writer in", "writer_leaves(state, now, claim, wakes)", "pass", within="_downgrade"
    ),
    of_rules(
        "a downgrade keeps the poison",
        "writer_leaves(state, now, claim, wakes)",
        "state.poisoned = writer.poisoned\n        writer_leaves(state, now, claim, wakes)",
        within="_downgrade",
    ),
    of_rules(
        "a second downgrade is refused", "    if ask.token in state.readers:", "    if False:", within="_downgrade"
    ),
    of_rules("anybody may release", "if writer and writer.token == ask.token:", "if writer:", within="_release"),
    of_rules("an error does not keep the poison", "if ask.poison is not Poison.CLEAR:", "if ask.poison is Poison.SET:"),
    of_rules("an error poisons", "ask.poison is Poison.SET or writer.poisoned", "True"),
    of_rules("a word does not poison", "ask.poison is Poison.SET or writer.poisoned", "writer.poisoned"),
    of_rules("no min hold", "if ask.min_hold and writer.since", "if False and writer.since"),
    of_rules(
        "min hold is counted from the release",
        'Writer("", writer.since, writer.since + ask.min_hold)',
        'Writer("", writer.since, now + ask.min_hold)',
    ),
    of_rules("a cooldown has an owner", 'Writer("", writer.since', "Writer(writer.token, writer.since"),
    of_rules("a release does not touch", "    state.touched = now\n", "", within="_release"),
    of_rules("undo digs no grave", "state.graves[token] = now + GRAVE", "pass"),
    of_rules("graves are shallow", "state.graves[token] = now + GRAVE", "state.graves[token] = now + GRAVE // 3"),
    of_rules("undo loses the poison", "state.poisoned = state.writer.poisoned", "pass"),
    of_rules("undo poisons", "state.poisoned = state.writer.poisoned", "state.poisoned = True"),
    of_rules("undo forgets readers", "del state.readers[token]", "pass", within="_undo"),
    of_rules("undo takes any writer back", "if state.writer and state.writer.token == token:", "if state.writer:"),
    of_rules("a tick is claimed twice", "if to <= state.fence:", "if to < state.fence:"),
    of_rules("a tick is claimed ahead of time", "if to > now:", "if False:"),
    of_rules("a claimed tick is not confirmed", "if to == state.fence and token == state.claimant:", "if False:"),
    of_rules(
        "a claimed tick is confirmed to anybody",
        "if to == state.fence and token == state.claimant:",
        "if to == state.fence:",
    ),
    of_rules("force does not poison", "state.poisoned or bool(writer.token)", "state.poisoned", within="_force"),
    of_rules("force poisons for a cooldown", "bool(writer.token)", "True", within="_force"),
    of_rules("force spares readers", "    state.readers.clear()\n", ""),
    of_rules("mend overlooks the writer", "        state.writer.poisoned = False", "        pass"),
    of_rules("mend overlooks the flag", "    state.poisoned = False\n    if state.writer:", "    if state.writer:"),
    of_rules("purge drops a poisoned name", " or state.poisoned or state.claimant", " or state.claimant"),
    of_rules("purge drops a claimed tick", " or state.poisoned or state.claimant", " or state.poisoned"),
    of_rules("purge drops a name with graves", "or state.graves or", "or"),
    of_rules("purge drops a name in use", "idles = not used and", "idles ="),
    of_rules("purge does not wait", "state.touched + idle <= now", "True"),
]
