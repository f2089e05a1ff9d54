"""Every way in which a few processes, one key and a network that delays, reorders and loses can go.

Requests and replies wait in the network as long as it likes, at most `LIFE` ticks; what was not delivered by then is
lost. Callers keep the client's protocol: a token is asked again only after a definite refusal; an attempt that ends
with its Acquire unanswered is undone, and its caller goes on with a new token at once; Undo, Release and Leave are sent
again, in the background, until answered; a Downgrade in doubt is undone; deadlines are stamped before the send.

Times and fences are relative, "so many ms left" and "so many grants ago", so that histories which differ only in when
they happened are one.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from grelmicro_fastapi.coordination.state import (
    Acquire,
    Command,
    Downgrade,
    Leave,
    Mode,
    Poison,
    Release,
    State,
    Undo,
    Verdict,
)

from .frozen import FENCE, NOW, TICK, Broken, Frozen, Step, freeze, must, thaw

TTL, PLACE, CLAIM, LIFE = 2, 3, 1, 2
"""In ticks. A message lives shorter than a grave."""
IDLE, ASKING, REFUSED, HOLDING, DOWNGRADING, CRASHED = "idle", "asking", "refused", "holding", "downgrading", "crashed"


class Caller(NamedTuple):
    """One process. `left` ticks its guard may be believed; `errands` are sent again until they are answered."""

    phase: str = IDLE
    attempt: int = 0
    reads: bool = False
    left: int = 0
    fence: int = 0
    errands: tuple["Message", ...] = ()


class Message(NamedTuple):
    """A request (kind in capitals) or its reply, `age` ticks after the request was sent."""

    kind: str
    caller: int
    attempt: int
    age: int = 0
    body: Any = None


class World(NamedTuple):
    """A whole situation. `delivered`: the writer's caller has the grant. `owed`: why there must be poison, or ""."""

    store: Frozen
    callers: tuple[Caller, ...]
    network: tuple[Message, ...] = ()
    top: int = 0
    delivered: bool = False
    owed: str = ""
    ticks: int = 0
    doubts: int = 0
    quits: int = 0
    crashes: int = 0


class Scope(NamedTuple):
    """What happens at most: the attempts of each process (W, R, or D for a write that downgrades), and the faults."""

    attempts: tuple[str, ...]
    ticks: int = 0
    doubts: int = 0
    quits: int = 0
    crashes: int = 0
    bodies: tuple[Poison, ...] = (Poison.CLEAR,)
    seats: bool = True


def heeds(caller: Caller, reply: Message) -> bool:
    """Does anybody still wait for that reply?"""
    if reply.kind in "ad":
        return reply.attempt == caller.attempt and caller.phase == (ASKING if reply.kind == "a" else DOWNGRADING)
    return any(reply.kind == errand.kind.lower() and reply.attempt == errand.attempt for errand in caller.errands)


class Network:
    """The rules of the game: from one situation to all that can follow, and what must be true of each."""

    def __init__(self, step: Step, scope: Scope) -> None:
        self.step = step
        self.scope = scope
        self.start = World(freeze(State()), tuple(Caller() for _ in scope.attempts))

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for at, message in enumerate(world.network):
            if at and message == world.network[at - 1]:
                continue
            rest = world._replace(network=world.network[:at] + world.network[at + 1 :])
            if message.kind < "a":
                yield f"apply {message}", self.apply(rest, message)
            else:
                yield f"hear {message}", self.hear(rest, message)
        for who, caller in enumerate(world.callers):
            yield from self.act(world, who, caller)
        if world.ticks < self.scope.ticks:
            yield "tick", self.tick(world)

    def tick(self, world: World) -> World:
        callers = tuple(c._replace(left=c.left - 1) if c.left else c for c in world.callers)
        network = tuple(m._replace(age=m.age + 1) for m in world.network if m.age < LIFE)
        store = freeze(thaw(world.store, TICK))
        return world._replace(ticks=world.ticks + 1, callers=callers, network=network, store=store)

    # -- what callers do ------------------------------------------------------------------------------------------

    def act(self, world: World, who: int, caller: Caller) -> Iterator[tuple[str, World]]:
        scope, phase = self.scope, caller.phase
        if phase == CRASHED:
            return
        if world.crashes < scope.crashes and caller != Caller():
            yield f"{who} crashes", self.put(world._replace(crashes=world.crashes + 1), who, Caller(CRASHED))
        for errand in caller.errands:
            if not any(m.caller == who and m.kind.upper() == errand.kind for m in world.network):
                yield f"{who} sends {errand.kind} again", self.put(world, who, caller, errand)
            elif world.doubts < scope.doubts:
                doubt = world._replace(doubts=world.doubts + 1)
                yield f"{who} doubts {errand.kind}", self.put(doubt, who, caller, errand)
        if phase == IDLE and caller.attempt < len(scope.attempts[who]):
            reads = scope.attempts[who][caller.attempt] == "R"
            asking = caller._replace(phase=ASKING, reads=reads)
            yield f"{who} asks", self.put(world, who, asking, Message("A", who, caller.attempt, 0, reads))
        elif phase == REFUSED:
            asking = caller._replace(phase=ASKING)
            yield f"{who} asks again", self.put(world, who, asking, Message("A", who, caller.attempt, 0, caller.reads))
            if world.quits < scope.quits:
                quitting = world._replace(quits=world.quits + 1)
                yield f"{who} gives up", self.end(quitting, who, caller, "L" if scope.seats else "")
        elif phase in (ASKING, DOWNGRADING) and world.quits < scope.quits:
            yield f"{who} quits in doubt", self.end(world._replace(quits=world.quits + 1), who, caller, "U")
        elif phase == HOLDING:
            for poison in scope.bodies:
                yield f"{who} releases ({poison})", self.end(world, who, caller, "R", poison)
            if scope.attempts[who][caller.attempt] == "D" and not caller.reads and caller.left:
                spent = caller._replace(phase=DOWNGRADING, left=0, fence=0)
                yield f"{who} downgrades", self.put(world, who, spent, Message("D", who, caller.attempt))

    def end(self, world: World, who: int, caller: Caller, kind: str, body: Any = None) -> World:
        """The attempt is over for its caller, who is free to start another. The errand goes on behind."""
        free = Caller(IDLE, caller.attempt + 1, errands=caller.errands)
        if not kind:
            return self.put(world, who, free)
        errand = Message(kind, who, caller.attempt, 0, body)
        return self.put(world, who, free._replace(errands=tuple(sorted((*caller.errands, errand)))), errand)

    def put(self, world: World, who: int, caller: Caller, *more: Message) -> World:
        """Change a caller. Replies that nobody waits for any more are dropped."""
        callers = (*world.callers[:who], caller, *world.callers[who + 1 :])
        network = sorted(m for m in (*world.network, *more) if m.kind < "a" or heeds(callers[m.caller], m))
        return world._replace(callers=callers, network=tuple(network))

    # -- what the store does ---------------------------------------------------------------------------------------

    def apply(self, world: World, ask: Message) -> World:
        """One request reaches the store. The reply sets out."""
        state, token = thaw(world.store), f"{ask.caller}:{ask.attempt}"
        delivered, owed = world.delivered, world.owed
        if state.writer and state.writer.until <= NOW:
            owed, delivered = ("a death" if delivered else owed or "a lost grant"), False
        before = state.writer if state.writer and state.writer.until > NOW else None
        found, until = (before.poisoned, before.until) if before else (False, 0)
        reply = self.step(state, self.command(ask, token), NOW, CLAIM * TICK)
        if ask.kind == "U" and self.scope.seats:
            self.step(state, self.command(ask._replace(kind="L"), token), NOW, CLAIM * TICK)
        granted = reply.verdict is Verdict.GRANTED
        grown = 0
        if before and before.token == token:
            if ask.kind == "A" and not ask.body:
                must(granted and reply.fence == FENCE and reply.poisoned == found, "a resend is the same grant")
                must(state.writer is not None and state.writer.until >= until, "a resend never shortens the lease")
            elif delivered and ask.kind in "RD":
                owed = {Poison.SET: "a word", Poison.KEEP: owed}.get(ask.body, "")
        elif granted and ask.kind == "A" and not ask.body:
            grown, delivered = 1, False
        must(reply.fence == state.fence == FENCE + grown, "the fence rises by one for a new writer, and only then")
        shown = state.poisoned or bool(state.writer and state.writer.poisoned)
        must(shown == bool(owed), f"poison is {shown} though owed to {owed or 'nothing'}")
        body = None
        if ask.kind in "AD":
            body = (reply.verdict, 0, reply.poisoned) if granted else (reply.verdict, 0, False)
        world = self.older(world, grown)._replace(store=freeze(state), owed=owed, delivered=delivered)
        return self.put(world, ask.caller, world.callers[ask.caller], ask._replace(kind=ask.kind.lower(), body=body))

    def command(self, ask: Message, token: str) -> Command:
        mode = Mode.READ if ask.kind == "A" and ask.body else Mode.WRITE
        reads = "R" in self.scope.attempts[ask.caller][ask.attempt]
        seat = f"{ask.caller}/{'r' if reads else 'w'}" if self.scope.seats else ""
        match ask.kind:
            case "A":
                return Acquire(token, mode, TTL * TICK, seat, PLACE * TICK)
            case "R":
                return Release(token, 0, ask.body)
            case "D":
                return Downgrade(token, TTL * TICK)
            case "U":
                return Undo(token)
        return Leave(seat)

    def older(self, world: World, grants: int) -> World:
        """Every fence seen so far is `grants` further back."""
        if not grants:
            return world
        network = tuple(
            m._replace(body=(m.body[0], m.body[1] - grants, m.body[2])) if m.kind in "ad" else m for m in world.network
        )
        callers = tuple(c._replace(fence=c.fence - grants) if c.phase == HOLDING else c for c in world.callers)
        return world._replace(network=network, callers=callers, top=world.top - grants)

    # -- what callers hear and believe -----------------------------------------------------------------------------

    def hear(self, world: World, reply: Message) -> World:
        """One reply reaches its caller."""
        who = reply.caller
        caller = world.callers[who]
        if reply.kind in "rul":
            errands = tuple(e for e in caller.errands if (e.kind.lower(), e.attempt) != (reply.kind, reply.attempt))
            return self.put(world, who, caller._replace(errands=errands))
        verdict, fence, poisoned = reply.body
        left = TTL - reply.age
        if reply.kind == "a" and verdict is Verdict.HELD:
            return self.put(world, who, caller._replace(phase=REFUSED))
        if reply.kind == "d" and verdict is Verdict.GONE:
            return self.end(world, who, caller, "")
        must(verdict is Verdict.GRANTED, f"refused as {verdict}")
        if left <= 0:
            return self.end(world, who, caller, "U")
        reads = caller.reads or reply.kind == "d"
        must(poisoned == bool(world.owed), "a guard knows whether it found poison")
        must(fence >= world.top if reads else fence > world.top, "fences rise over grants")
        world = world._replace(top=fence, delivered=world.delivered or not reads)
        return self.put(world, who, caller._replace(phase=HOLDING, reads=reads, left=left, fence=fence))

    def check(self, world: World) -> None:
        """What must be true of every situation."""
        _, writer, readers, seats, _ = world.store
        reading = {token for token, _ in readers}
        believers = [(who, c) for who, c in enumerate(world.callers) if c.phase == HOLDING and c.left]
        writers = [who for who, c in believers if not c.reads]
        must(len(writers) < 2, "two valid write guards")
        must(not writers or len(believers) == 1, "a valid read guard beside a valid write guard")
        for who, c in believers:
            token = f"{who}:{c.attempt}"
            if c.reads:
                must(token in reading, "a valid read guard without its lease")
            else:
                must(bool(writer) and writer[0] == token and c.fence == 0, "a valid write guard without its lease")
        for who, c in enumerate(world.callers):
            if c.phase == IDLE and not c.errands and not any(m.caller == who for m in world.network):
                left = [*reading, *(seat[0] for seat in seats), writer[0] if writer else ""]
                must(not any(name.startswith((f"{who}:", f"{who}/")) for name in left), "an attempt left something")


def explore(step: Step, scope: Scope) -> int:
    """Visit every situation within the scope and say how many there are. `Broken` tells the way to a bad one."""
    network = Network(step, scope)
    came: dict[int, tuple[int, str]] = {hash(network.start): (0, "")}
    frontier = deque([network.start])
    while frontier:
        world = frontier.popleft()
        here = hash(world)
        what = ""
        try:
            for what, following in network.moves(world):
                key = hash(following)
                if key not in came:
                    came[key] = (here, what)
                    network.check(following)
                    frontier.append(following)
        except Broken as broken:
            raise Broken(f"{broken}; it came to that by: {story(came, here)} | {what}") from None
    return len(came)


def story(came: dict[int, tuple[int, str]], here: int) -> str:
    """How it came to this situation."""
    told: list[str] = []
    while here in came:
        here, what = came[here]
        told.append(what)
    return " | ".join(reversed(told[:-1]))
