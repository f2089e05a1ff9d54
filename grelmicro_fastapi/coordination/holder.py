"""Who has hold of a lease."""

from grelmicro_fastapi.coordination.identity import Owner


class Holder:
    """A task or thread, and the object through which it took a lease, or joined one. That object is never None."""

    def __init__(self, owner: Owner, source: object) -> None:
        self.owner = owner
        self.source = source


class Hold(Holder):
    """Something that is held: nearly always by the one who took it and nobody else, so it is that holder itself.

    Neither has `__slots__`, for what has other attributes beside them is slow.
    """

    joined: tuple[Holder, ...] = ()
    """Those who joined and hold it still."""

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All that hold it: who took it, unless he let go, comes first."""
        return self.joined if self.source is None else (self, *self.joined)

    @property
    def free(self) -> bool:
        """Does nobody hold it any more?"""
        return self.source is None and not self.joined

    def held_by(self, holder: Holder) -> bool:
        """Does that one hold it?"""
        return self.source is not None if holder is self else holder in self.joined

    def let_go(self, holder: Holder) -> None:
        """Forget one holder. Who took it is not kept alive by it, for whoever reads remembers what he read."""
        if holder is self:
            self.owner = self.source = None
        else:
            self.joined = tuple(other for other in self.joined if other is not holder)

    def holder(self, who: Owner, source: object) -> Holder | None:
        """The holder who took or joined it through that object."""
        return next((one for one in self.holders if one.owner is who and one.source is source), None)


class Grip:
    """What all guards of a lease that is kept alive hold together. When it is gone, nobody can use the lease."""

    __slots__ = ("__weakref__",)
