"""Every way in which a few processes, one key and a network that delays, reorders and loses can go.

Requests and replies wait in the network as long as it likes, at most `LIFE` ticks; what was not delivered by then is
lost. Callers keep the client's protocol: a token is asked again only after a definite refusal; if resent on doubt, a
grant is believed only once every copy is answered; an attempt that ends with an Acquire unanswered is undone, and its
caller goes on with a new token at once; Undo, Release and Leave are sent again, in the background, until answered; a
Downgrade in doubt is undone; deadlines are stamped before the send.
"""

from collections.abc import Iterator
from typing import Any

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

from .frozen import FENCE, NOW, TICK, Step, freeze, must, thaw
from .world import (
    ASKING,
    CLAIM,
    CRASHED,
    DOWNGRADING,
    HOLDING,
    IDLE,
    LIFE,
    PLACE,
    REFUSED,
    TTL,
    Caller,
    Message,
    Scope,
    World,
    heeds,
)


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
            asking = caller._replace(phase=ASKING, reads=reads, open=1)
            yield f"{who} asks", self.put(world, who, asking, Message("A", who, caller.attempt, 0, reads))
        elif phase == REFUSED:
            asking = caller._replace(phase=ASKING, open=1)
            yield f"{who} asks again", self.put(world, who, asking, Message("A", who, caller.attempt, 0, caller.reads))
            if world.quits < scope.quits:
                quitting = world._replace(quits=world.quits + 1)
                yield f"{who} gives up", self.end(quitting, who, caller, "L" if scope.seats else "")
        elif phase in (ASKING, DOWNGRADING):
            if world.quits < scope.quits:
                yield f"{who} quits in doubt", self.end(world._replace(quits=world.quits + 1), who, caller, "U")
            if world.doubts < scope.doubts and phase == ASKING:
                doubt, asking = world._replace(doubts=world.doubts + 1), caller._replace(open=caller.open + 1)
                copy = Message("A", who, caller.attempt, 0, caller.reads)
                yield f"{who} asks twice", self.put(doubt, who, asking, copy)
        elif phase == HOLDING:
            for poison in scope.bodies:
                yield f"{who} releases ({poison})", self.end(world, who, caller, "R", poison)
            if scope.attempts[who][caller.attempt] == "D" and not caller.reads and caller.left:
                spent = caller._replace(phase=DOWNGRADING, left=0, fence=0, open=1)
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
        callers = tuple(
            c._replace(fence=c.fence - grants) if c.left or c.phase == HOLDING else c for c in world.callers
        )
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
        must(verdict in (Verdict.GRANTED, Verdict.HELD if reply.kind == "a" else Verdict.GONE), f"refused as {verdict}")
        caller = caller._replace(open=max(caller.open - 1, 0))
        if verdict is Verdict.GRANTED:
            caller = caller._replace(granted=True)
            left = max(TTL - reply.age, 0)
            if not caller.left or (fence, left) > (caller.fence, caller.left):
                caller = caller._replace(left=left, fence=fence, poisoned=poisoned)
        if caller.open and not (self.scope.hasty and caller.left):
            return self.put(world, who, caller)
        if not caller.granted:
            over = reply.kind == "d"
            return self.end(world, who, caller, "") if over else self.put(world, who, caller._replace(phase=REFUSED))
        if not caller.left:
            return self.end(world, who, caller, "U")
        return self.believe(world, who, caller._replace(reads=caller.reads or reply.kind == "d", open=0, granted=False))

    def believe(self, world: World, who: int, caller: Caller) -> World:
        """A caller takes a grant for good: from here on it has a guard."""
        must(caller.poisoned == bool(world.owed), "a guard knows whether it found poison")
        rises = caller.fence >= world.top if caller.reads else caller.fence > world.top
        must(rises, "fences rise over grants")
        world = world._replace(top=caller.fence, delivered=world.delivered or not caller.reads)
        return self.put(world, who, caller._replace(phase=HOLDING, poisoned=False))

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
