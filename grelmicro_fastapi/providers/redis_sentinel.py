"""Asks Sentinels which server is the primary, each time a connection is made."""

from collections.abc import Callable, Sequence
from typing import cast

from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_driver import Connection, Driver
from grelmicro_fastapi.providers.redis_node import Dial, Node

_PATIENCE = 0.5
"""Seconds for one Sentinel: the next one may know more."""


def dial(driver: Driver, service: str, sentinels: Sequence[Dial], connect: Callable[[str, int], Connection]) -> Dial:
    """Make connections to the primary of a service. Raises `BackendError` if no Sentinel names one."""
    # The one that answered last is asked first the next time.
    order = [Node(driver, each, _PATIENCE, _PATIENCE) for each in sentinels]

    async def find() -> Connection:
        problem = BackendError(f"no Sentinel knows a primary for {service!r}")
        problem.sent = False
        for sentinel in list(order):
            try:
                (where,) = await sentinel.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)])
            except BackendError as error:
                problem.__cause__ = error
                continue
            finally:
                await sentinel.close()
                sentinel.reopen()
            if isinstance(where, list):
                order.remove(sentinel)
                order.insert(0, sentinel)
                host, port = cast("list[bytes]", where)
                return connect(host.decode(), int(port))
        raise problem

    return find
