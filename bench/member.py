"""A process that plays: `python -m bench.member CONTENDER URL`.

Each line in is a game, each line out says whether it went well, and what it gave.
"""

import asyncio
import json
import sys

from bench.contenders import load
from bench.games import GAMES


async def main(kind: str, url: str) -> None:
    async with load(kind)(url) as contender:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            game, options = json.loads(line)
            try:
                told = [True, await GAMES[game](contender, **options)]
            except Exception as error:
                told = [False, f"{type(error).__name__}: {error}"]
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
