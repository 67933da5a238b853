"""What one read brought; the codec fills it."""

from headrace.batch import PublishBatch, SettleBatch

class Intake:
    """What one read brought, up to the next command that is neither a publish nor a settle. One per event loop."""

    @property
    def publishes(self) -> PublishBatch: ...
    @property
    def settles(self) -> SettleBatch: ...
    @property
    def publish_commands(self) -> int:
        """PUB, MPUB and DPUB commands in ``publishes``: that many OKs are owed."""

    @property
    def first_publish_name(self) -> str:
        """The name of the first of them."""

    @property
    def requeues_clamped(self) -> int:
        """REQ delays cut to max_req_timeout_ms so far."""

    def clear(self) -> None:
        """Forget the commands; what their bytes were borrowed from may be used again."""

    def drop_settles_behind_publishes(self) -> None:
        """Forget each FIN, REQ and TOUCH that came after a publish: that publish failed and ends the connection."""

    def failures(self) -> list[tuple[int, str, bytes]]:
        """Return the error of each failed settle: (publish commands before it, code, frame data)."""

    def published(self, index: int) -> tuple[str, bytes, int, int]:
        """Return a copy of one publish entry: (topic, body, deliver_at_ms, command_entries)."""

    def settled(self, index: int) -> tuple[str, int, int, int]:
        """Return one settle entry: (command, message_id, delay_ms, publish commands before it)."""

    def command_counts(self) -> dict[str, int]:
        """Return how often each command was taken, by name, since the Intake was made."""
