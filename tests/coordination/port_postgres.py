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


MUTANTS: dict[str, tuple[str, str]] = {}
