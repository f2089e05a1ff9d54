"""`redis.lua` as the differential suite drives it: on a plain connection, without our store."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from grelmicro_fastapi.coordination.store import Ask
from grelmicro_fastapi.providers.redis_wire import LOOK, SCRIPT, answered, snapshot, words
from tests.coordination.histories import History, Outcome
from tests.servers.redis import Server

SOURCE = "\n".join(line.strip() for line in SCRIPT.splitlines())
"""The law without its margins: what a mutant changes does not depend on how deep it stands."""

_names = itertools.count()


@contextmanager
def redis_port(server: Server, source: str) -> Iterator[Callable[[History], Sequence[Outcome]]]:
    with server.client(protocol=2) as client:
        client.flushall()
        sha = client.script_load(source)

        def run(history: History) -> Sequence[Outcome]:
            key = f"port:{next(_names)}"
            with client.pipeline(transaction=False) as pipe:
                for now, claim, commands in history:
                    said = words([Ask(key, command, claim) for command in commands])
                    pipe.evalsha(sha, 2, key, "floor", now, "", "PUBLISH", "", *said)
                    pipe.evalsha(sha, 2, key, "floor", now, "", "", "", *LOOK)
                answers = pipe.execute()
            told = zip(answers[::2], answers[1::2], strict=True)
            return [Outcome(tuple(answered(answer).replies), snapshot(look).state) for answer, look in told]

        yield run


MUTANTS = {
    "a_kept_seat_stays_called": ("if other.mode == 'w' then other.called = 0 end", ""),
    "readers_that_keep_the_turn_give_up_its_window": (
        "if other.mode == 'w' then other.called",
        "if true then other.called",
    ),
    "the_short_way_lets_the_fence_stand_still": ("readers == 0 then\nfence = fence + 1\n", "readers == 0 then\n"),
    "the_short_way_leaves_the_poison": ("'state', pack(STATE, 0, fence", "'state', pack(STATE, found, fence"),
    "the_short_way_hides_the_poison_from_writers": (
        "#note, note))\nreturn {0, {'granted', fence, found,",
        "#note, note))\nreturn {0, {'granted', fence, 0,",
    ),
    "the_short_way_hides_the_poison_from_readers": (
        "earliest, 0))\nreturn {0, {'granted', fence, found,",
        "earliest, 0))\nreturn {0, {'granted', fence, 0,",
    ),
    "the_short_way_hears_no_expectation": ("and open and ARGV[13] == '' then", "and open then"),
    "the_short_way_enters_beside_a_writer": ("count == 14 and open and", "count == 14 and"),
    "the_short_way_enters_before_those_who_wait": ("local open = at > #before", "local open = writes == 0"),
    "the_short_way_writes_beside_readers": ("ARGV[8] == 'w' and readers == 0 then", "ARGV[8] == 'w' then"),
    "the_short_way_grants_what_was_undone": ("if before and graves == 0 then", "if before then"),
    "the_short_way_counts_a_reader_twice": (
        "earliest > now and not call('HMGET', key, 'r:' .. token)[1])",
        "earliest > now)",
    ),
    "the_short_way_reads_beside_the_dead": ("(readers == 0 or earliest > now and", "(readers == 0 or"),
    "the_short_way_keeps_no_latest_end": (
        "if ends >= latest then latest, exact = ends, 1 end\nif readers",
        "if readers",
    ),
    "the_short_way_keeps_no_earliest_end": ("if readers == 0 or ends < earliest then", "if readers == 0 then"),
    "the_short_way_counts_no_reader": ("claimant, readers + 1, 0, latest", "claimant, readers, 0, latest"),
    "the_short_way_releases_for_others": ("left = holder == token and ends", "left = ends"),
    "the_short_way_releases_the_dead": ("token and ends > now and behind", "token and behind"),
    "the_short_way_releases_past_those_who_wait": ("ends > now and behind > #before", "ends > now"),
    "the_short_way_ends_minimal_holds": ("ARGV[8] == '0' and ARGV[9] == 'clear' then", "ARGV[9] == 'clear' then"),
    "the_short_way_clears_every_poison": ("ARGV[8] == '0' and ARGV[9] == 'clear' then", "ARGV[8] == '0' then"),
    "the_short_way_lets_a_reader_past_those_who_wait": ("elseif open and readers > 0", "elseif readers > 0"),
    "the_short_way_lets_dead_readers_leave": ("readers > 0 and earliest > now then", "readers > 0 then"),
    "the_short_way_lets_strangers_leave": ("'r:' .. token)[1]\nif ends then", "'r:' .. token)[1] or '1'\nif ends then"),
    "the_short_way_trusts_a_latest_end_that_left": ("if tonumber(ends) >= latest then exact = 0 end\n", ""),
    "the_short_way_forgets_that_the_last_reader_left": (
        "if readers == 0 then latest, exact, earliest = 0, 1, 0 end",
        "if readers == 0 then exact, earliest = 1, 0 end",
    ),
    "the_line_hears_no_expectation": (" and ARGV[asks + 8] == ''", ""),
    "the_line_takes_readers_for_writers": (" and ARGV[asks + 3] == 'w'", ""),
    "the_line_grants_what_was_undone": ("graves == 0 and readers == 0 and at", "readers == 0 and at"),
    "the_line_writes_beside_readers": ("graves == 0 and readers == 0 and at", "graves == 0 and at"),
    "the_line_forgets_a_dead_writer": ("local short, here = writes == 0 or ends > now,", "local short, here = true,"),
    "the_line_passes_over_readers": ("short = mode == 'w' and lasts", "short = lasts"),
    "the_line_keeps_the_dead": ("short = mode == 'w' and lasts > now and", "short = mode == 'w' and"),
    "the_line_waits_for_who_is_late": ("and (summoned == 0 or summoned > now)", ""),
    "the_line_lets_strangers_leave": ("short and holder == ARGV[7] and called == 0", "short and called == 0"),
    "the_line_calls_twice": ("short and holder == ARGV[7] and called == 0", "short and holder == ARGV[7]"),
    "the_line_ends_minimal_holds": ("ARGV[8] == '0' and 'clear' == ARGV[9]", "'clear' == ARGV[9]"),
    "the_line_clears_every_poison": ("ARGV[8] == '0' and 'clear' == ARGV[9]", "ARGV[8] == '0'"),
    "the_line_has_no_patience": ("local window = max(tonumber(ARGV[6]), patience)", "local window = tonumber(ARGV[6])"),
    "the_line_gives_the_second_no_alarm": ("second and {first, 0, second, window} or {first, 0}", "{first, 0}"),
    "the_line_calls_nobody": ("called, told = now + window,", "local _, told = now + window,"),
    "the_line_is_jumped": ("(not first or first == id)", "true"),
    "the_line_is_entered_beside_a_writer": ("wants and (leaves or writes == 0) and", "wants and"),
    "the_line_lets_the_fence_stand_still": ("fence, touched, writes = fence + 1,", "fence, touched, writes = fence,"),
    "the_line_hides_the_poison": ("{'granted', fence, poisoned, 0, stays", "{'granted', fence, 0, 0, stays"),
    "the_line_leaves_the_poison": ("stays and 1 or 0}\npoisoned = 0\n", "stays and 1 or 0}\n"),
    "the_line_forgets_the_poison": ("now + ARGV[asks + 4], poisoned,", "now + ARGV[asks + 4], 0,"),
    "the_line_forgets_the_note": ("#token, token, #note, note)\nahead", "#token, token, 0, '')\nahead"),
    "the_line_keeps_no_seat": ("first and ARGV[asks + 7] == '1'", "false"),
    "the_line_keeps_every_seat": ("first and ARGV[asks + 7] == '1'", "first"),
    "the_line_refuses_its_own_writer": ("short = short and holder ~= ARGV[7]", ""),
    "the_line_seats_who_has_no_seat": ("if short and (enters or id ~= '') then", "if short then"),
    "the_line_forgives_who_was_late": ("now + ARGV[asks + 6], 0, grace, #id", "now + ARGV[asks + 6], 0, 0, #id"),
    "the_line_leaves_a_seat_called": (
        "stays and pack(SEAT, 'w', 0, expires, 0,",
        "stays and pack(SEAT, 'w', 0, expires, called,",
    ),
    "the_line_seats_twice": ("before:sub(rest, from - 1) .. place .. before:sub(past)", "behind .. place"),
    "the_line_seats_the_first_behind_itself": ("if first == id then\nahead = place\nelse", "if false then\nelse"),
    "the_line_keeps_who_leaves": ("touched, writes, writing, answer[2] = now, 0, '',", "touched, answer[2] = now,"),
    "the_line_waits_for_nobody": ("(writes == 1 and ends or called) - now", "ends - now"),
    "a_dead_writer_does_not_poison": (
        "poisoned = poisoned or writer.token ~= ''\nwriter_leaves()\nend\nreturn",
        ("writer_leaves()\nend\nreturn"),
    ),
    "a_cooldown_poisons": (
        "buried = true\npoisoned = poisoned or writer.token ~= ''",
        "buried, poisoned = true, true",
    ),
    "a_lease_lives_one_millisecond_longer": (
        "if writer and writer.ends <= now then",
        "if writer and writer.ends < now then",
    ),
    "a_reader_lives_one_millisecond_longer": ("if ends and ends <= now then", "if ends and ends < now then"),
    "readers_are_never_buried": ("local buried = earliest > 0 and earliest <= now and sweep()", "local buried = false"),
    "the_earliest_end_is_not_kept": (
        "if earliest == 0 or ends < earliest then earliest = ends end\nend\n\nlocal function leave",
        "if earliest == 0 then earliest = ends end\nend\n\nlocal function leave",
    ),
    "the_latest_end_stays_when_its_reader_leaves": ("if leases[field] >= latest then exact = false end", ""),
    "a_leaving_reader_is_not_counted": ("readers = readers - 1\n", ""),
    "a_seat_outlives_its_place": ("if seats[i].ends <= now then", "if seats[i].ends < now then"),
    "an_undone_token_is_granted": ("if leases['g:' .. token] then return 'buried' end", ""),
    "a_grave_is_dug_for_a_second": ("keep('g:' .. token, now + GRAVE)", "keep('g:' .. token, now + 1000)"),
    "a_resend_shortens_the_lease": (
        "if writes then\nwriter.ends = max(writer.ends, now + ttl)",
        "    if writes then\nwriter.ends = now + ttl",
    ),
    "a_renewal_shortens_the_lease": (
        "if writer and writer.token == token then\nwriter.ends = max(writer.ends, now + ttl)",
        "if writer and writer.token == token then\nwriter.ends = now + ttl",
    ),
    "expect_forgets_the_poison": ("if expect and (fence ~= expect or poisoned)", "if expect and fence ~= expect"),
    "a_refusal_without_a_seat_leaves_one": ("if seat == '' then return 'held' end", ""),
    "a_lapse_does_not_lengthen_the_window": (
        "if lapsed(other) then other.grace = math.min(2 * max(claim, other.grace), place) end",
        "",
    ),
    "the_window_grows_without_end": ("math.min(2 * max(claim, other.grace), place)", "2 * max(claim, other.grace)"),
    "a_seat_that_asks_stays_called": ("other.called = 0\n", ""),
    "the_fence_stands_still": ("fence = fence + 1\nwriter = {", "writer = {"),
    "a_writer_does_not_take_the_poison_over": (
        "ends = now + ttl, note = note, poisoned = found}",
        "ends = now + ttl, note = note, poisoned = false}",
    ),
    "poison_stays_behind_its_writer": ("poisoned = found}\npoisoned = false\n", "poisoned = found}\n"),
    "the_note_is_lost": ("#writer.note, writer.note)", "0, '')"),
    "a_grant_keeps_the_seat": ("if not more then\ngive_up(seat)\n", "  if not more then\n"),
    "a_grant_gives_the_seat_up_though_more_follow": ("if not more then", "if true then"),
    "a_downgrade_shortens_the_lease": ("keep(field, max(writer.ends, now + ttl))", "keep(field, now + ttl)"),
    "a_downgrade_keeps_the_writer": (
        "touched = now\nwriter_leaves()\nreturn 'granted', poisoned",
        "    touched = now\nreturn 'granted', poisoned",
    ),
    "poison_keep_forgets": ("poisoned = poison == 'set' or writer.poisoned end", "poisoned = poison == 'set' end"),
    "poison_set_is_not_heard": ("poisoned = poison == 'set' or writer.poisoned end", "poisoned = writer.poisoned end"),
    "no_cooldown": ("if min_hold > 0 and writer.since + min_hold > now then", "if false then"),
    "undo_keeps_the_poison": ("poisoned = writer.poisoned\n", ""),
    "a_tick_is_claimed_twice": ("if to <= fence then return 'late' end", ""),
    "a_tick_is_claimed_early": ("if to > now then return 'early' end", ""),
    "a_tick_is_not_confirmed": ("if to == fence and token == claimant then return 'granted' end", ""),
    "force_does_not_poison": (
        "if writer then\npoisoned = poisoned or writer.token ~= ''\n",
        "  if writer then\n",
    ),
    "force_spares_the_readers": ("leases[field], changed[field] = false, true end\nend", "end\nend"),
    "mend_spares_the_writer": ("if writer then writer.poisoned = false end\n", ""),
    "a_claimed_tick_is_purged": (" or poisoned or claimant ~= ''", " or poisoned"),
    "purge_does_not_look_at_the_clock": ("(used or touched + idle > now)", "used"),
    "a_leaving_writer_gives_no_turns": ("seat.turn = true\n", ""),
    "a_leaving_writer_calls_nobody": ("seat.turn = true\nsummon(seat)\n", "      seat.turn = true\n"),
    "readers_that_wait_are_not_called": (
        "elseif (not first or i < first) and seat.called == 0 then\nsummon(seat)",
        "elseif false then",
    ),
    "readers_behind_a_writer_are_called": ("(not first or i < first) and seat.called == 0", "seat.called == 0"),
    "the_writer_behind_the_readers_has_no_alarm": (
        "if turns > 0 then\nwakes[#wakes + 1], wakes[#wakes + 2] = seats[first].id, turns\n",
        "  if turns > 0 then\n",
    ),
    "who_is_behind_the_writer_has_no_alarm": ("if seats[i].called == 0 then wakes", "if false then wakes"),
    "turns_are_no_reason_for_readers_to_wait": ("turns > 0 and (ahead > 0 or mode == 'w') and turns or ahead", "ahead"),
    "nobody_is_called": ("if #seats > 0 then call_next() end", ""),
    "a_turn_is_no_turn": ("if other.turn then return 0 end", ""),
    "a_writer_does_not_wait_for_turns": ("then turns = max(turns, other.called) end", "then turns = 0 end"),
    "a_lapsed_seat_holds_others_back": ("and ahead == 0 and not lapsed(other)", "and ahead == 0"),
    "who_came_later_holds_back_too": ("elseif not seen and ahead == 0", "elseif ahead == 0"),
    "a_writer_is_called_beside_a_reader": (
        "seats[first].called > 0 or readers > 0 then",
        "seats[first].called > 0 then",
    ),
    "a_writer_is_called_before_the_turns_are_over": ("turns = max(turns, seat.called - now)", "turns = 0"),
    "the_second_writer_has_no_alarm": (
        "if second then\nwakes[#wakes + 1], wakes[#wakes + 2] = seats[second].id, turns\n",
        "if second then\n",
    ),
    "integers_go_through_tostring": ("return format('%.0f', number)", "return tostring(number)"),
    "retry_is_counted_before_the_call": (
        "if verdict == 'held' and op == 'A' then retry",
        "if verdict == 'held' and op == 'A' and #wakes == 0 then retry",
    ),
}
