"""What a consumer group wants of one topic: a tag expression, or a SQL filter that others compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.format.record import tag_hash

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` takes off."""


def parse_tags(expression: str) -> tuple[str, ...] | None:
    """Return the tags of a tag expression, each once, in its order; None stands for every message.

    ``A || B`` wants the tags A and B; ``*`` or an empty text wants all. One of blanks wants none, as RocketMQ has it.
    """
    if expression in {"", ALL}:
        return None
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip(_BLANKS))))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic.

    Attributes:
        expression: As the client wrote it.
        kind: ``TAG`` or ``SQL92``.
        version: The client's, in ms; a newer one replaces an older one.
    """

    topic: str
    expression: str = ALL
    kind: str = TAG
    version: int = 0

    @classmethod
    def make(cls, topic: str, expression: str = ALL, kind: str = TAG, version: int = 0) -> Subscription:
        """Return a subscription; no kind stands for ``TAG``."""
        return cls(topic, expression, kind or TAG, version)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that its expression names: none where it wants everything or nothing, nor with SQL92.

        Made when they are asked for, as they take thirty times the room of the text.
        """
        return parse_tags(self.expression) or () if self.kind == TAG else ()

    @property
    def codes(self) -> frozenset[int]:
        """The hashes of its tags, as consume-queue entries hold them: what clients send of them is not trusted."""
        return frozenset(tag_hash(tag) for tag in self.tags)

    @property
    def filter(self) -> tuple[str, str]:
        """What decides which messages it wants: the kind and the text of its expression."""
        return self.kind, self.expression
