"""Sets of keys that were seen, as fingerprints; key_set.pyx says how they work."""

from typing import Final

from headrace.batch import PublishBatch

FINGERPRINT_BYTES: Final[int]

def siphash(data: bytes, key_0: int, key_1: int) -> bytes:
    """Return SipHash-2-4 with 128 bits, keyed with two u64: for tests."""

def fingerprint(key: bytes) -> bytes:
    """Return the fingerprint of one key."""

class KeySet:
    """Fingerprints. Growing copies a 64th of them at a time."""

    count: Final[int]
    @property
    def memory_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, one: bytes) -> bool: ...
    def add(self, fingerprints: bytes) -> int:
        """Add fingerprints that stand behind each other; return how many are new."""

    def discard(self, fingerprints: bytes) -> None:
        """Remove those that are there."""

def select_new(batch: PublishBatch, first: int, into: KeySet, others: tuple[KeySet, ...]) -> bytes:
    """Keep the entries of a batch from ``first`` on whose UNIQ_KEY is new; return their fingerprints in that order.

    Of entries with the same key the first is kept. What is new is in ``into`` then: whoever does not append the batch
    has to ``discard`` it.

    Raises:
        KeyError: an entry has no UNIQ_KEY; its argument is the entry's number, counted from ``first``. Nothing changed.
    """
