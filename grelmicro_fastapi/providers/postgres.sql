-- The law of locks (coordination/rules.py) where the data lives: one call of apply_v1 advances the states of its keys.
--
-- @schema@ stands for the schema's name. This file can be run again and again: it creates what is missing, replaces
-- the functions and deletes nothing. Instants and lengths are milliseconds, instants since 1970 on the server's clock.

do $$
begin
    -- "create schema if not exists" asks for a right on the database even where the schema is there.
    if to_regnamespace('@schema@') is null then
        create schema @schema@;
    end if;
    if to_regtype('@schema@.seat') is null then
        create type @schema@.seat as
            (id text, mode text, until bigint, turn boolean, called bigint, grace bigint);
    end if;
    if to_regtype('@schema@.wake') is null then
        create type @schema@.wake as (seat text, after bigint);
    end if;
end
$$;

-- One row for each key. The writer is null if nobody writes, and empty for a cooldown. The queue is in the row: a hand-over
-- is one update. Names and tokens compare byte by byte, whatever the database's collation.
create table if not exists @schema@.lock (
    key text collate "C" primary key,
    version integer not null,
    fence bigint not null,
    poisoned boolean not null,
    writer text collate "C",
    since bigint not null,
    until bigint,
    note text not null,
    found boolean not null,       -- the poison that this writer took over
    readers integer not null,     -- how many holder rows are readers, so that few have to look
    graves integer not null,      -- and how many are graves
    due bigint,                   -- no holder row ends before this
    seats @schema@.seat[] not null,
    plain_until bigint not null,  -- until then there are no holder rows, and all seats are live writers'
    claimant text not null,
    touched bigint not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- One row for each reader, and for each grave of an undone token.
create table if not exists @schema@.holder (
    key text collate "C" not null,
    token text collate "C" not null,
    grave boolean not null,
    until bigint not null,
    primary key (key, token, grave)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The highest fence of all names that were dropped: a name that comes back starts above it.
create table if not exists @schema@.floor (
    one boolean primary key default true check (one),
    fence bigint not null
);

-- Which edition of this file was run last, for each version of the law.
create table if not exists @schema@.edition (
    law integer primary key,
    edition integer not null
);


-- The 64-bit advisory lock of a key.
create or replace function @schema@.lock_number_v1(key text) returns bigint language sql stable
as $$
    select ('x' || encode(substring(sha256(convert_to('@schema@.' || $1, 'UTF8')) from 1 for 8), 'hex'))::bit(64)::bigint
$$;


-- Until when somebody stands in the way of this asker while nobody writes, or 0. May be early, never late.
create or replace function @schema@.blocked_until_v1(l @schema@.lock, seat text, mode text, at bigint) returns bigint
language plpgsql stable
as $$
declare
    s @schema@.seat;
    turns bigint := 0;
    ahead bigint := 0;
    seen boolean := false;
begin
    if mode = 'w' and l.readers > 0 then
        return (select max(h.until) from @schema@.holder h where h.key = l.key and not h.grave);
    end if;
    foreach s in array l.seats loop
        if s.id = seat then
            if s.turn then
                return 0;
            end if;
            seen := true;
        elsif s.mode = 'r' then
            if s.turn and s.called > at then
                turns := greatest(turns, s.called);
            end if;
        elsif not seen and ahead = 0 and not (0 < s.called and s.called <= at) then
            ahead := case when s.called > 0 then s.called else s.until end;
        end if;
    end loop;
    -- Turns hold readers back only by way of the writer who waits for them.
    return case when turns > 0 and (ahead > 0 or mode = 'w') then turns else ahead end;
end
$$;


-- Tell a seat to ask, now or after so many ms; the caller tells its own. Returns what the reply says of it.
create or replace function @schema@.wake_v1(key text, seat text, after bigint, caller text) returns text
language plpgsql volatile
as $$
declare
    channel text := left(seat, -position('/' in reverse(seat)));
    done text;
begin
    if channel <> caller and length(channel) between 1 and 40 then
        done := pg_notify('grelmicro_' || channel, json_build_array(key, seat, after)::text);
    end if;
    return '[' || to_json(seat) || ',' || after || ']';
end
$$;


-- Advance the states of `keys`, whose locks are held, and return the replies as `apply_v1` does.
create or replace function @schema@.advance_v1(keys text[], asks jsonb, caller text, at bigint) returns text
language plpgsql volatile
as $law$
declare
    l @schema@.lock;
    was @schema@.lock;
    kept boolean;
    drops boolean;
    commands jsonb;
    command jsonb;
    op text;
    tok text;
    mode text;
    seat text;
    claim bigint;
    ttl bigint;
    s @schema@.seat;
    w @schema@.wake;
    wakes @schema@.wake[];
    verdict text;
    poison boolean;
    retry bigint;
    seated boolean;
    leaves boolean;
    settles boolean;
    buried boolean;
    held boolean;
    undone boolean;
    n integer;
    number bigint;
    place integer;
    first integer;
    second integer;
    span bigint;
    told text;
    replies text := '';
    lasting boolean := false;
begin
    for i in 1 .. cardinality(keys) loop
        select * into l from @schema@.lock k where k.key = keys[i];
        kept := found;
        drops := false;
        if not kept then
            l := row(keys[i], 1, coalesce((select f.fence from @schema@.floor f where f.one), 0), false, null, 0, null, '', false,
                0, 0, null, '{}', 0, '', 0);
        end if;
        was := l;
        commands := asks -> (i - 1);
        for j in 0 .. jsonb_array_length(commands) - 1 loop
            if l.version > 1 then
                replies := replies || ',["newer",' || l.version || ',false,0,false,[]]';
                continue;
            end if;
            command := commands -> j;
            op := command ->> 'op';
            tok := command ->> 'token';
            claim := command ->> 'claim';
            verdict := 'granted';
            poison := false;
            retry := 0;
            seated := false;
            leaves := false;
            settles := false;
            buried := false;
            wakes := '{}';

            -- First, the dead are buried.
            if l.due <= at then
                delete from @schema@.holder h where h.key = l.key and h.until <= at;
                if found then
                    buried := true;
                    select count(*) filter (where not h.grave), count(*) filter (where h.grave)
                        into l.readers, l.graves from @schema@.holder h where h.key = l.key;
                end if;
                l.due := (select min(h.until) from @schema@.holder h where h.key = l.key);
            end if;
            n := cardinality(l.seats);
            if n > 0 then
                place := 0;
                for p in 1 .. n loop
                    s := l.seats[p];
                    if s.until > at then
                        place := place + 1;
                        l.seats[place] := s;
                    end if;
                end loop;
                if place < n then
                    buried := true;
                    l.seats := l.seats[1:place];
                end if;
            end if;
            if l.until <= at then
                buried := true;
                -- A dead writer leaves word: the next one must learn that it died. A cooldown is nobody.
                l.poisoned := l.poisoned or l.writer <> '';
                leaves := true;
            end if;

            for stage in 1 .. 2 loop
                -- A writer leaves after the burial, and after the command.
                if leaves then
                    leaves := false;
                    l.writer := null;
                    l.since := 0;
                    l.until := null;
                    l.note := '';
                    l.found := false;
                    -- It gives the readers that wait their turn.
                    for p in 1 .. cardinality(l.seats) loop
                        s := l.seats[p];
                        if s.mode = 'r' then
                            s.turn := true;
                            s.called := at + greatest(claim, s.grace);
                            l.seats[p] := s;
                            wakes := wakes || row(s.id, 0)::@schema@.wake;
                        end if;
                    end loop;
                end if;
                exit when stage = 2;

                if op = 'acquire' then
                    mode := command ->> 'mode';
                    seat := command ->> 'seat';
                    ttl := command ->> 'ttl';
                    -- An expression with a query in it costs one, even where the query is not reached.
                    held := false;
                    undone := false;
                    if l.readers > 0 then
                        held := exists (
                            select from @schema@.holder h where h.key = l.key and h.token = tok and not h.grave);
                    end if;
                    if l.graves > 0 then
                        undone := exists (
                            select from @schema@.holder h where h.key = l.key and h.token = tok and h.grave);
                    end if;
                    if undone then
                        verdict := 'buried';
                    elsif l.writer = tok and mode = 'w' then
                        l.until := greatest(l.until, at + ttl);
                        poison := l.found;
                        settles := true;
                    elsif held and mode = 'r' and l.writer is distinct from tok then
                        update @schema@.holder h set until = greatest(h.until, at + ttl)
                            where h.key = l.key and h.token = tok and not h.grave;
                        poison := l.poisoned;
                        settles := true;
                    elsif l.writer = tok or held then
                        verdict := 'held';
                    elsif (command -> 'expect') <> 'null' and ((command ->> 'expect')::bigint <> l.fence or l.poisoned) then
                        verdict := 'mismatch';
                        poison := l.poisoned;
                    elsif l.writer is not null or (cardinality(l.seats) > 0 or mode = 'w' and l.readers > 0)
                        and @schema@.blocked_until_v1(l, seat, mode, at) > 0
                    then
                        verdict := 'held';
                        if seat <> '' then
                            seated := true;
                            place := 0;
                            for p in 1 .. cardinality(l.seats) loop
                                s := l.seats[p];
                                if s.id = seat then
                                    place := p;
                                    exit;
                                end if;
                            end loop;
                            if place = 0 then
                                s := row(seat, mode, at + (command ->> 'place')::bigint, false, 0, 0);
                                l.seats := l.seats || s;
                            else
                                s.until := at + (command ->> 'place')::bigint;
                                if 0 < s.called and s.called <= at then
                                    s.grace := least(2 * greatest(claim, s.grace), (command ->> 'place')::bigint);
                                end if;
                                s.called := 0;
                                l.seats[place] := s;
                            end if;
                        end if;
                    else
                        poison := l.poisoned;
                        settles := true;
                        l.touched := at;
                        if mode = 'w' then
                            l.fence := l.fence + 1;
                            l.writer := tok;
                            l.since := at;
                            l.until := at + ttl;
                            l.note := command ->> 'note';
                            l.found := l.poisoned;
                            l.poisoned := false;
                        else
                            insert into @schema@.holder values (l.key, tok, false, at + ttl);
                            l.readers := l.readers + 1;
                            l.due := least(l.due, at + ttl);
                        end if;
                    end if;
                    -- A grant gives the seat up, unless more of its waiters follow.
                    if settles and seat <> '' then
                        for p in 1 .. cardinality(l.seats) loop
                            s := l.seats[p];
                            if s.id = seat then
                                seated := (command ->> 'more')::boolean;
                                if not seated then
                                    l.seats := l.seats[:p - 1] || l.seats[p + 1:];
                                elsif s.mode = 'w' then
                                    s.called := 0;
                                    l.seats[p] := s;
                                end if;
                                exit;
                            end if;
                        end loop;
                    end if;

                elsif op = 'release' then
                    if l.writer = tok then
                        if command ->> 'poison' <> 'clear' then
                            l.poisoned := command ->> 'poison' = 'set' or l.found;
                        end if;
                        ttl := command ->> 'min_hold';
                        if ttl <> 0 and l.since + ttl > at then
                            l.writer := '';
                            l.until := l.since + ttl;
                            l.note := '';
                            l.found := false;
                        else
                            leaves := true;
                        end if;
                        l.touched := at;
                    else
                        held := false;
                        if l.readers > 0 then
                            delete from @schema@.holder h where h.key = l.key and h.token = tok and not h.grave;
                            held := found;
                        end if;
                        if held then
                            l.readers := l.readers - 1;
                            l.touched := at;
                        else
                            verdict := 'gone';
                        end if;
                    end if;

                elsif op = 'renew' or op = 'downgrade' then
                    ttl := command ->> 'ttl';
                    if l.writer = tok and op = 'renew' then
                        l.until := greatest(l.until, at + ttl);
                        poison := l.found;
                    elsif l.writer = tok then
                        number := greatest(l.until, at + ttl);
                        update @schema@.holder h set until = number
                            where h.key = l.key and h.token = tok and not h.grave;
                        if not found then
                            insert into @schema@.holder values (l.key, tok, false, number);
                            l.readers := l.readers + 1;
                        end if;
                        l.due := least(l.due, number);
                        l.touched := at;
                        leaves := true;
                        poison := l.poisoned;
                    else
                        held := false;
                        if l.readers > 0 then
                            update @schema@.holder h set until = greatest(h.until, at + ttl)
                                where h.key = l.key and h.token = tok and not h.grave;
                            held := found;
                        end if;
                        if held then
                            poison := l.poisoned;
                        else
                            verdict := 'gone';
                        end if;
                    end if;

                elsif op = 'undo' then
                    if l.writer = tok then
                        l.poisoned := l.found;
                        leaves := true;
                    else
                        verdict := 'gone';
                    end if;
                    if l.readers > 0 and verdict = 'gone' then
                        delete from @schema@.holder h where h.key = l.key and h.token = tok and not h.grave;
                        if found then
                            l.readers := l.readers - 1;
                            verdict := 'granted';
                        end if;
                    end if;
                    update @schema@.holder h set until = at + 30000 where h.key = l.key and h.token = tok and h.grave;
                    if not found then
                        insert into @schema@.holder values (l.key, tok, true, at + 30000);
                        l.graves := l.graves + 1;
                    end if;
                    l.due := least(l.due, at + 30000);
                    l.touched := at;

                elsif op = 'leave' then
                    seat := command ->> 'seat';
                    l.seats := array(select u::@schema@.seat from unnest(l.seats) u where u.id <> seat);

                elsif op = 'advance' then
                    number := command ->> 'to';
                    if number = l.fence and tok = l.claimant then
                        null;
                    elsif number > at then
                        verdict := 'early';
                    elsif number <= l.fence then
                        verdict := 'late';
                    else
                        l.fence := number;
                        l.claimant := tok;
                        l.touched := at;
                    end if;

                elsif op = 'force' then
                    if l.writer is null and l.readers = 0 then
                        verdict := 'gone';
                    else
                        if l.readers > 0 then
                            delete from @schema@.holder h where h.key = l.key and not h.grave;
                            l.readers := 0;
                        end if;
                        if l.writer is not null then
                            l.poisoned := l.poisoned or l.writer <> '';
                            leaves := true;
                        end if;
                        l.touched := at;
                    end if;

                elsif op = 'mend' then
                    l.poisoned := false;
                    l.found := false;
                    l.touched := at;

                elsif op = 'vacate' then
                    if not buried then
                        verdict := 'gone';
                    end if;

                elsif op = 'purge' or op = 'drop' then
                    if l.writer is not null or l.readers > 0 or cardinality(l.seats) > 0 or l.graves > 0
                        or l.poisoned or l.claimant <> '' or l.touched + (command ->> 'idle')::bigint > at
                    then
                        verdict := 'held';
                    else
                        drops := op = 'drop';
                    end if;

                else
                    raise exception using errcode = '22023', message = 'apply_v1 does not know ' || coalesce(op, 'null');
                end if;
            end loop;

            -- Wake whoever may enter, and set alarms in case that the called ones do not come.
            if cardinality(l.seats) > 0 and l.writer is null then
                first := 0;
                second := 0;
                span := 0;
                for p in 1 .. cardinality(l.seats) loop
                    s := l.seats[p];
                    if s.mode = 'w' then
                        if not (0 < s.called and s.called <= at) then
                            if first = 0 then
                                first := p;
                            elsif second = 0 then
                                second := p;
                            end if;
                        end if;
                    elsif s.turn then
                        span := greatest(span, s.called - at);
                    elsif s.called = 0 and first = 0 then
                        s.called := at + greatest(claim, s.grace);
                        l.seats[p] := s;
                        wakes := wakes || row(s.id, 0)::@schema@.wake;
                    end if;
                end loop;
                if first > 0 and l.readers = 0 then
                    s := l.seats[first];
                    if s.called = 0 then
                        if span > 0 then
                            wakes := wakes || row(s.id, span)::@schema@.wake;
                        else
                            span := greatest(claim, s.grace);
                            s.called := at + span;
                            l.seats[first] := s;
                            wakes := wakes || row(s.id, 0)::@schema@.wake;
                        end if;
                        for p in first + 1 .. cardinality(l.seats) loop
                            s := l.seats[p];
                            if p = second or second = 0 and s.called = 0 then
                                wakes := wakes || row(s.id, span)::@schema@.wake;
                            end if;
                        end loop;
                    end if;
                end if;
            end if;
            if verdict = 'held' and op = 'acquire' then
                retry := greatest(0, coalesce(l.until, @schema@.blocked_until_v1(l, seat, mode, at)) - at);
            end if;
            lasting := lasting or op = 'undo' or verdict = 'granted' and op <> 'release' and op <> 'leave';

            told := '';
            foreach w in array wakes loop
                told := told || ',' || @schema@.wake_v1(l.key, w.seat, w.after, caller);
            end loop;
            replies := replies || ',["' || verdict || '",' || l.fence || ',' || poison || ',' || retry || ','
                || seated || ',[' || substr(told, 2) || ']]';
        end loop;

        if drops then
            delete from @schema@.lock k where k.key = l.key;
            insert into @schema@.floor as f (fence) values (l.fence)
                on conflict (one) do update set fence = greatest(f.fence, excluded.fence);
        elsif l is distinct from was then
            l.plain_until := case when l.readers = 0 and l.graves = 0 then 9223372036854775807 else 0 end;
            foreach s in array l.seats loop
                l.plain_until := case when s.mode = 'w' then least(l.plain_until, s.until) else 0 end;
            end loop;
            if kept then
                update @schema@.lock k set
                    fence = l.fence, poisoned = l.poisoned, writer = l.writer, since = l.since, until = l.until,
                    note = l.note, found = l.found, readers = l.readers, graves = l.graves, due = l.due,
                    seats = l.seats, plain_until = l.plain_until, claimant = l.claimant, touched = l.touched
                    where k.key = l.key;
            else
                insert into @schema@.lock select l.*;
            end if;
        end if;
    end loop;

    -- A grant must outlive a crash of the server. A release need not: it comes back as a lease that ends by itself.
    if not lasting then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return '[' || substr(replies, 2) || ']';
end
$law$;


-- What the law comes to where there are only writers: one enters, queues, or leaves, alone or with its successor's request
-- behind it. It is most of what is asked, and takes half the time like this: each is one update of the row, whose
-- conditions are the rest of the law. Returns the replies as `apply_v1` does, or null if nothing was done.
create or replace function @schema@.writers_v1(name text, command jsonb, next jsonb, caller text, at bigint) returns text
language plpgsql volatile
as $$
declare
    seat text := command ->> 'seat';
    rung bigint;
    poison boolean;
    seated boolean;
    retry bigint;
    line @schema@.seat[];
    told text := '';
    rest text;
    done text;
begin
    if command ->> 'op' = 'acquire' and command ->> 'mode' = 'w' and command -> 'expect' = 'null' and next is null then
        -- It enters where nobody waits, or at the head of the line, and keeps its seat there if more of its waiters follow.
        update @schema@.lock k set
            fence = k.fence + 1, writer = command ->> 'token', since = at, until = at + (command ->> 'ttl')::bigint,
            note = command ->> 'note', found = k.poisoned, poisoned = false, touched = at,
            seats = case when (command ->> 'more')::boolean and cardinality(k.seats) > 0
                then row(seat, 'w', (k.seats[1]).until, false, 0, (k.seats[1]).grace)::@schema@.seat || k.seats[2:]
                else k.seats[2:] end
            where k.key = name and k.version = 1 and k.plain_until > at and k.writer is null
                and (cardinality(k.seats) = 0 or (k.seats[1]).id = seat)
            returning k.fence, k.found, (command ->> 'more')::boolean and cardinality(k.seats) > 0
            into rung, poison, seated;
        if found then
            return '[["granted",' || rung || ',' || poison || ',0,' || seated || ',[]]]';
        end if;
        if seat <> '' then
            -- It takes a place behind the writer that is in, or behind the seat that was called.
            update @schema@.lock k set
                seats = k.seats || row(seat, 'w', at + (command ->> 'place')::bigint, false, 0, 0)::@schema@.seat,
                plain_until = least(k.plain_until, at + (command ->> 'place')::bigint)
                where k.key = name and k.version = 1 and k.plain_until > at
                    and case when k.writer is null then (k.seats[1]).called else k.until end > at
                    and k.writer is distinct from command ->> 'token'
                    and not exists (select from unnest(k.seats) s where s.id = seat)
                returning k.fence, coalesce(k.until, (k.seats[1]).called) - at into rung, retry;
            if found then
                done := set_config('synchronous_commit', 'off', true);
                return '[["held",' || rung || ',false,' || retry || ',true,[]]]';
            end if;
        end if;
    elsif command ->> 'op' = 'release' and command ->> 'min_hold' = '0' and command ->> 'poison' = 'clear' then
        -- It leaves, and the head of the line is called. The second is to ask when the first has not come by then.
        update @schema@.lock k set
            writer = null, since = 0, until = null, note = '', found = false, touched = at,
            seats = case when cardinality(k.seats) > 0
                then row((k.seats[1]).id, 'w', (k.seats[1]).until, false,
                    at + greatest((command ->> 'claim')::bigint, (k.seats[1]).grace), (k.seats[1]).grace)::@schema@.seat
                    || k.seats[2:]
                else k.seats end
            where k.key = name and k.version = 1 and k.plain_until > at and k.writer = command ->> 'token' and k.until > at
                and coalesce((k.seats[1]).called, 0) = 0 and coalesce((k.seats[2]).called, 0) = 0
            returning k.fence, k.seats into rung, line;
        if found then
            if cardinality(line) > 0 then
                told := @schema@.wake_v1(name, (line[1]).id, 0, caller);
                if cardinality(line) > 1 then
                    told := told || ',' || @schema@.wake_v1(name, (line[2]).id, (line[1]).called - at, caller);
                end if;
            end if;
            told := '[["granted",' || rung || ',false,0,false,[' || told || ']]';
            if next is null then
                done := set_config('synchronous_commit', 'off', true);
                return told || ']';
            end if;
            return told || ',' || substr(coalesce(
                @schema@.writers_v1(name, next, null, caller, at),
                @schema@.advance_v1(array[name], jsonb_build_array(jsonb_build_array(next)), caller, at)
            ), 2);
        end if;
    end if;
    return null;
end
$$;


-- Advance the states of `keys`, which are distinct: asks[i] holds the commands for keys[i], in order. Returns the replies as
-- JSON, flat, in that order: [verdict, fence, poisoned, retry, seated, [[seat, after], ...]]. `caller` is the channel of
-- the asking store, which tells its own seats. `handed` is the time in a test.
create or replace function @schema@.apply_v1(keys text[], asks jsonb, caller text, handed bigint) returns text
language plpgsql volatile
as $$
declare
    at bigint;
    number bigint;
    told text;
    done text;
begin
    -- An older snapshot would not see what the last holder of the advisory lock did.
    if pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed' then
        raise exception using errcode = 'GM001', message = 'apply_v1 needs a transaction that is read committed';
    end if;
    -- Local to this transaction. A request that waited long must not land when its sender has given up. A cached plan must
    -- not scan what is small today and large tomorrow; where no scan can be avoided, older servers would compile it.
    done := pg_catalog.concat(
        pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
        pg_catalog.set_config('lock_timeout', '4s', true),
        pg_catalog.set_config('enable_seqscan', 'off', true),
        pg_catalog.set_config('jit', 'off', true)
    );
    if cardinality(keys) = 1 then
        done := pg_advisory_xact_lock(@schema@.lock_number_v1(keys[1]));
    else
        -- In one order for everybody, or two batches could wait for each other.
        for number in select distinct @schema@.lock_number_v1(k) from unnest(keys) k order by 1 loop
            perform pg_advisory_xact_lock(number);
            exit when clock_timestamp() > statement_timestamp() + interval '5 s';
        end loop;
    end if;
    if clock_timestamp() > statement_timestamp() + interval '5 s' then
        raise exception using errcode = 'GM002', message = 'waited too long for the other users of these locks';
    end if;
    at := coalesce(handed, floor(extract(epoch from clock_timestamp()) * 1000)::bigint);

    if cardinality(keys) = 1 and jsonb_array_length(asks -> 0) <= 2 then
        told := @schema@.writers_v1(keys[1], asks -> 0 -> 0, asks -> 0 -> 1, caller, at);
        if told is not null then
            return told;
        end if;
    end if;
    return @schema@.advance_v1(keys, asks, caller, at);
end
$$;


-- The same where transactions are not read committed by default: it makes itself one that is.
create or replace procedure @schema@.apply_read_committed_v1(
    keys text[], asks jsonb, caller text, handed bigint, inout replies text
) language plpgsql
as $$
begin
    rollback;
    set transaction isolation level read committed, read write;
    replies := @schema@.apply_v1(keys, asks, caller, handed);
end
$$;


-- One state as JSON, and the clock. All of it from one snapshot.
create or replace function @schema@.peek_v1(name text, handed bigint) returns text language sql stable
as $$
    select pg_catalog.json_build_object(
        'now', coalesce(handed, pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint),
        'floor', coalesce((select f.fence from @schema@.floor f where f.one), 0),
        'lock', (select pg_catalog.to_json(k) from @schema@.lock k where k.key = name),
        'holders', (select pg_catalog.json_agg(pg_catalog.json_build_array(h.token, h.grave, h.until))
            from @schema@.holder h where h.key = name)
    )
$$;


insert into @schema@.edition as e values (1, @edition@)
    on conflict (law) do update set edition = excluded.edition where e.edition < excluded.edition;
