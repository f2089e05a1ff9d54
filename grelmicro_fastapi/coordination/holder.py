"""Who has hold of a lease."""

from grelmicro_fastapi.coordination.identity import Owner


class Holder:
    """A task or thread, and the object through which it took a lease."""

    __slots__ = ("owner", "source")

    def __init__(self, owner: Owner, source: object) -> None:
        self.owner = owner
        self.source = source


class Grip:
    """What all guards of a lease that is kept alive hold together. When it is gone, nobody can use the lease."""

    __slots__ = ("__weakref__",)
