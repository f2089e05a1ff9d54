"""A process that comes too late gets longer to come, until it is in."""

from grelmicro_fastapi.coordination.state import Acquire, Mode, Verdict

from .key import Key


def test_a_seat_that_lapsed_gets_twice_the_window_next_time(key: Key) -> None:
    assert windows(key, 6, place=20_000) == [250, 500, 1000, 2000, 4000, 8000]


def test_a_window_never_outgrows_the_place(key: Key) -> None:
    assert windows(key, 4, place=1500) == [250, 500, 1000, 1500]


def windows(key: Key, turns: int, place: int) -> list[int]:
    """The windows of a process that always answers when its window has just passed and somebody else is in."""
    key.write("other 0")
    key.write("slow", "s/w", place=place)
    seen = []
    for turn in range(turns):
        key.release(f"other {turn}")
        seen.append(key.state.seats[0].called - key.now)
        key.later(seen[-1])
        assert key.write(f"other {turn + 1}", ttl=9000).verdict is Verdict.GRANTED
        assert key.write("slow", "s/w", place=place).verdict is Verdict.HELD
    return seen


def test_grace_starts_from_the_window_of_the_one_who_asks(key: Key) -> None:
    key.write("a")
    key.write("s", "slow/w")
    key.release("a")
    key.later(250)
    key.write("b")
    key.ask(Acquire("s", Mode.WRITE, 1000, "slow/w"), 700)
    assert key.state.seats[0].grace == 1400


def test_a_seat_that_comes_in_time_but_in_vain_gets_no_grace(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.write("d", "r/w")
    key.leave("p/w")
    key.release("a")
    key.read("c", "q/r")
    assert key.state.seats[0].called == key.now + 250
    assert key.write("d", "r/w").verdict is Verdict.HELD
    assert (key.state.seats[0].grace, key.state.seats[0].called) == (0, 0)


def test_a_grant_ends_the_grace(key: Key) -> None:
    key.write("a")
    key.write("s", "slow/w")
    key.release("a")
    key.later(250)
    key.write("b")
    key.write("s", "slow/w")
    key.release("b")
    key.write("s", "slow/w")
    key.write("t", "slow/w")
    assert key.state.seats[0].grace == 0


def test_a_seat_that_waits_behind_its_own_writer_gets_no_grace(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    key.write("b", "p/w", more=True)
    key.later(300)
    assert key.write("c", "p/w").verdict is Verdict.HELD
    assert (key.state.seats[0].grace, key.state.seats[0].called) == (0, 0)
