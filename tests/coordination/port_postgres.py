"""`postgres.sql` as the differential suite drives it: on a plain connection, without our store."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import asyncpg

from grelmicro_fastapi.coordination.store import Ask
from grelmicro_fastapi.providers.postgres_schema import sql
from grelmicro_fastapi.providers.postgres_wire import Letter, snapshot
from tests.coordination.histories import History, Outcome
from tests.servers.postgres import PostgresServer

_names = itertools.count()
_SCHEMA = "port"
# A whole history is one call: what each batch is answered, and what is kept after it.
_TELL = f"""
create or replace function {_SCHEMA}.tell(history jsonb) returns text[] language plpgsql as $$
declare
    batch jsonb;
    told text[] := '{{}}';
begin
    for batch in select b from jsonb_array_elements(history) b loop
        told := told || {_SCHEMA}.apply_v1(array[batch ->> 0], batch -> 1, '', (batch ->> 2)::bigint);
        told := told || {_SCHEMA}.peek_v1(batch ->> 0, (batch ->> 2)::bigint);
    end loop;
    return told;
end
$$
"""


@contextmanager
def postgres_port(server: PostgresServer, source: str) -> Iterator[Callable[[History], Sequence[Outcome]]]:
    with asyncio.Runner() as runner:
        connection: asyncpg.Connection = runner.run(asyncpg.connect(server.url))
        runner.run(connection.execute(f"set client_min_messages = warning; drop schema if exists {_SCHEMA} cascade"))
        runner.run(connection.execute(sql(_SCHEMA, source)))
        runner.run(connection.execute(_TELL))

        def run(history: History) -> Sequence[Outcome]:
            key = f"port:{next(_names)}"
            letters = [Letter([Ask(key, command, batch.claim) for command in batch.commands]) for batch in history]
            told = [[key, json.loads(letter.body), batch.now] for letter, batch in zip(letters, history, strict=True)]
            query = f"select {_SCHEMA}.tell($1::text::jsonb)"
            answers: list[str] = runner.run(connection.fetchval(query, json.dumps(told)))
            return [
                Outcome(tuple(letter.answers(reply)), snapshot(key, peek).state)
                for letter, reply, peek in zip(letters, answers[::2], answers[1::2], strict=True)
            ]

        try:
            yield run
        finally:
            runner.run(connection.close())


MUTANTS = {
    "a_kept_seat_stays_called": (
        "elsif s.mode = 'w' then\n                                    s.called := 0;",
        "elsif false then",
    ),
    "readers_that_keep_the_turn_give_up_its_window": ("elsif s.mode = 'w' then\n", "else\n"),
    "a_dead_writer_does_not_poison": (
        "is nobody.\n                l.poisoned := l.poisoned or l.writer <> '';",
        "is nobody.",
    ),
    "a_cooldown_poisons": (
        "A cooldown is nobody.\n                l.poisoned := l.poisoned or l.writer <> '';",
        "A cooldown is nobody.\n                l.poisoned := true;",
    ),
    "a_lease_lives_one_millisecond_longer": ("if l.until <= at then", "if l.until < at then"),
    "a_reader_lives_one_millisecond_longer": ("h.key = l.key and h.until <= at;", "h.key = l.key and h.until < at;"),
    "readers_are_never_buried": ("if l.due <= at then", "if false then"),
    "the_earliest_end_is_not_kept": (
        "l.due := (select min(h.until) from @schema@.holder h where h.key = l.key);",
        "l.due := null;",
    ),
    "a_leaving_reader_is_not_counted": (
        "if held then\n                            l.readers := l.readers - 1;",
        "if held then",
    ),
    "a_seat_outlives_its_place": ("if s.until > at then", "if s.until >= at then"),
    "an_undone_token_is_granted": ("if undone then", "if false then"),
    "a_grave_is_dug_for_a_second": ("values (l.key, tok, true, at + 30000)", "values (l.key, tok, true, at + 1000)"),
    "a_resend_shortens_the_lease": (
        "mode = 'w' then\n                        l.until := greatest(l.until, at + ttl);",
        "mode = 'w' then\n                        l.until := at + ttl;",
    ),
    "a_renewal_shortens_the_lease": (
        "op = 'renew' then\n                        l.until := greatest(l.until, at + ttl);",
        "op = 'renew' then\n                        l.until := at + ttl;",
    ),
    "expect_forgets_the_poison": ("::bigint <> l.fence or l.poisoned)", "::bigint <> l.fence)"),
    "a_refusal_without_a_seat_leaves_one": (
        "if seat <> '' then\n                            seated",
        "if true then\n                            seated",
    ),
    "the_short_way_seats_who_has_no_seat": ("if seat <> '' then\n            --", "if true then\n            --"),
    "a_lapse_does_not_lengthen_the_window": ("s.grace := least(", "s.until := s.until + 0 * least("),
    "a_seat_that_asks_stays_called": (
        "                                s.called := 0;\n                                l.seats[place]",
        "                                l.seats[place]",
    ),
    "the_fence_stands_still_on_the_long_way": ("l.fence := l.fence + 1;", ""),
    "the_fence_stands_still_on_the_short_way": ("fence = k.fence + 1,", "fence = k.fence,"),
    "the_short_way_ignores_the_queue": ("(cardinality(k.seats) = 0 or (k.seats[1]).id = seat)", "true"),
    "the_short_way_enters_where_there_is_more": (
        "and k.plain_until > at and k.writer is null\n",
        "and k.writer is null\n",
    ),
    "the_short_way_enters_whatever_is_expected": ("and command -> 'expect' = 'null' and next", "and next"),
    "the_short_way_ignores_readers": (
        "l.plain_until := case when l.readers = 0 and l.graves = 0",
        "l.plain_until := case when l.graves = 0",
    ),
    "the_short_way_ignores_graves": (
        "l.plain_until := case when l.readers = 0 and l.graves = 0",
        "l.plain_until := case when l.readers = 0",
    ),
    "the_short_way_ignores_readers_that_wait": (
        "l.plain_until := case when s.mode = 'w' then least(l.plain_until, s.until) else 0 end;",
        "l.plain_until := least(l.plain_until, s.until);",
    ),
    "the_short_way_takes_dead_seats_for_live": (
        "case when s.mode = 'w' then least(l.plain_until, s.until) else 0 end;",
        "case when s.mode = 'w' then l.plain_until else 0 end;",
    ),
    "the_short_way_does_not_note_when_its_seats_end": (
        "plain_until = least(k.plain_until, at + (command ->> 'place')::bigint)",
        "plain_until = k.plain_until",
    ),
    "the_short_way_forgets_the_poison": ("found = k.poisoned, poisoned = false", "found = false, poisoned = false"),
    "the_short_way_keeps_the_seat": ("else k.seats[2:] end\n", "else k.seats end\n"),
    "the_short_way_gives_the_seat_up_though_more_follow": (
        "seats = case when (command ->> 'more')::boolean and cardinality(k.seats) > 0",
        "seats = case when false",
    ),
    "a_seat_kept_on_the_short_way_stays_called": (
        "(k.seats[1]).until, false, 0, (k.seats[1]).grace)",
        "(k.seats[1]).until, false, (k.seats[1]).called, (k.seats[1]).grace)",
    ),
    "a_seat_kept_on_the_short_way_loses_its_grace": ("until, false, 0, (k.seats[1]).grace)", "until, false, 0, 0)"),
    "the_short_way_seats_one_twice": ("and not exists (select from unnest(k.seats) s where s.id = seat)", ""),
    "the_short_way_seats_who_is_in": ("and k.writer is distinct from command ->> 'token'", ""),
    "the_short_way_seats_behind_the_dead": (
        "case when k.writer is null then (k.seats[1]).called else k.until end > at",
        "case when k.writer is null then (k.seats[1]).called > at else true end",
    ),
    "the_short_way_seats_behind_the_lapsed": (
        "case when k.writer is null then (k.seats[1]).called else k.until end > at",
        "case when k.writer is null then cardinality(k.seats) > 0 else k.until > at end",
    ),
    "the_short_way_is_late_to_ask_again": (
        "coalesce(k.until, (k.seats[1]).called) - at into",
        "coalesce(k.until, (k.seats[1]).until) - at into",
    ),
    "the_short_way_releases_the_dead": ("command ->> 'token' and k.until > at\n", "command ->> 'token'\n"),
    "the_short_way_leaves_where_there_is_more": (
        "k.plain_until > at and k.writer = command ->> 'token'",
        "k.writer = command ->> 'token'",
    ),
    "the_short_way_knows_no_cooldown": ("and command ->> 'min_hold' = '0'", ""),
    "the_short_way_leaves_no_poison": ("and command ->> 'poison' = 'clear' then", "then"),
    "the_short_way_calls_nobody": (
        "at + greatest((command ->> 'claim')::bigint, (k.seats[1]).grace)",
        "0 * greatest((command ->> 'claim')::bigint, (k.seats[1]).grace)",
    ),
    "the_short_way_gives_no_grace": (
        "at + greatest((command ->> 'claim')::bigint, (k.seats[1]).grace)",
        "at + (command ->> 'claim')::bigint",
    ),
    "the_short_way_calls_the_lapsed": ("and coalesce((k.seats[1]).called, 0) = 0 ", ""),
    "the_short_way_sets_the_lapsed_an_alarm": ("and coalesce((k.seats[2]).called, 0) = 0", ""),
    "the_short_way_sets_no_alarm": ("if cardinality(line) > 1 then", "if false then"),
    "a_successor_is_not_heard": (
        "@schema@.advance_v1(array[name], jsonb_build_array(jsonb_build_array(next)), caller, at)\n",
        "',[\"gone\",0,false,0,false,[]]]'\n",
    ),
    "poison_stays_behind_its_writer": (
        "l.found := l.poisoned;\n                            l.poisoned := false;",
        "l.found := l.poisoned;",
    ),
    "a_grant_keeps_the_seat": ("if settles and seat <> ''", "if false and seat <> ''"),
    "a_grant_gives_the_seat_up_though_more_follow": ("seated := (command ->> 'more')::boolean;", "seated := false;"),
    "a_downgrade_shortens_the_lease": ("number := greatest(l.until, at + ttl);", "number := at + ttl;"),
    "poison_keep_forgets": (
        "l.poisoned := command ->> 'poison' = 'set' or l.found;",
        "l.poisoned := command ->> 'poison' = 'set';",
    ),
    "poison_set_is_not_heard": ("l.poisoned := command ->> 'poison' = 'set' or l.found;", "l.poisoned := l.found;"),
    "no_cooldown": ("if ttl <> 0 and l.since + ttl > at then", "if false then"),
    "undo_keeps_the_poison": (
        "if l.writer = tok then\n                        l.poisoned := l.found;",
        "if l.writer = tok then",
    ),
    "a_tick_is_claimed_twice": ("elsif number <= l.fence then", "elsif false then"),
    "a_tick_is_claimed_early": ("elsif number > at then", "elsif false then"),
    "a_tick_is_not_confirmed": ("if number = l.fence and tok = l.claimant then", "if false then"),
    "force_does_not_poison": (
        "if l.writer is not null then\n                            l.poisoned := l.poisoned or l.writer <> '';",
        "if l.writer is not null then",
    ),
    "force_spares_the_readers": (
        "delete from @schema@.holder h where h.key = l.key and not h.grave;\n" + 28 * " " + "l.readers := 0;",
        "null;",
    ),
    "mend_spares_the_writer": ("l.poisoned := false;\n                    l.found := false;", "l.poisoned := false;"),
    "a_claimed_tick_is_purged": ("or l.poisoned or l.claimant <> ''", "or l.poisoned"),
    "purge_does_not_look_at_the_clock": ("or l.touched + (command ->> 'idle')::bigint > at", ""),
    "a_leaving_writer_gives_no_turns": ("                            s.turn := true;\n", ""),
    "nobody_is_called": ("if cardinality(l.seats) > 0 and l.writer is null then", "if false then"),
    "a_turn_is_no_turn": ("            if s.turn then\n                return 0;\n            end if;\n", ""),
    "a_lapsed_seat_holds_others_back": ("ahead = 0 and not (0 < s.called and s.called <= at) then", "ahead = 0 then"),
    "who_came_later_holds_back_too": ("elsif not seen and ahead = 0", "elsif ahead = 0"),
    "a_writer_is_called_beside_a_reader": ("if first > 0 and l.readers = 0 then", "if first > 0 then"),
    "the_second_writer_has_no_alarm": ("if p = second or second = 0 and", "if second = 0 and"),
    "retry_is_counted_before_the_call": (
        "if verdict = 'held' and op = 'acquire' then",
        "if verdict = 'held' and op = 'acquire' and cardinality(wakes) = 0 then",
    ),
}
