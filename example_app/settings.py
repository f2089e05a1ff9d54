"""What the shop reads from the environment."""

from pydantic import NonNegativeFloat, PositiveFloat
from pydantic_settings import BaseSettings


class Settings(BaseSettings):
    """Each field is the variable of the same name in upper case, such as `COORDINATION_URL`."""

    coordination_url: str = "sqlite:///locks.sqlite"
    """Where the locks are kept. The default is a file in the working folder."""
    example_database: str = ""
    """Where the shop keeps its own data, "shop.sqlite" in the working folder unless given."""
    example_lease: PositiveFloat = 10
    """Seconds after which a worker that was killed no longer holds its locks. A living one renews them."""
    example_pause: NonNegativeFloat = 2
    """Milliseconds between reading a quantity and writing it: time for others to get in between, if they could."""

    @property
    def database(self) -> str:
        """A path for SQLite.

        Tables remember fencing tokens, and tokens in memory start anew with the process, so the data must do the same.
        """
        memory = self.coordination_url.startswith("memory:")
        return self.example_database or (":memory:" if memory else "shop.sqlite")

    @property
    def wait(self) -> float:
        """Seconds that a request waits for a lock: enough to outlive a holder that died."""
        return self.example_lease + 5

    @property
    def pause(self) -> float:
        """The pause in seconds."""
        return self.example_pause / 1000


settings = Settings()
