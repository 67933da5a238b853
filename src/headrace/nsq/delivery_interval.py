"""For how long a busy channel gathers what it delivers next: longer while the event loop has no time to spare.

A loop that spends all its time on thousands of small deliveries a second gets longer intervals, step by step until it
has time again. More messages then leave together, and each costs less. Not every load is served by that: where its
publishers wait for what its consumers do (requests and replies), a message that waits is one that is not sent. So both
ways are measured against each other, and the longer intervals stay while they bring a tenth more messages: for longer
each time that a trial says the same.

Ref: docs/adr/0014-delivery-coalescing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.net.loop_load import Load

LONGEST_MS: Final = 25
"""The longest interval: the shortest output buffer time that clients ask for."""
FULL_LOAD: Final = 0.97
"""The part of its time that a loop works from which on it has none to spare."""
SPARE_LOAD: Final = 0.92
"""The part below which it has."""
MANY_DELIVERIES: Final = 5000
"""Deliveries a second from which on they cost a loop much of its time."""
FEW_DELIVERIES: Final = 1000
LONGER: Final = 2.5
SHORTER: Final = 0.7
MEASURED: Final = 6
"""Looks over which the rate of messages is measured, before a trial and at its end."""
TRIAL: Final = 16
"""Looks that a trial takes; intervals grow in the first third."""
GAIN: Final = 1.1
"""Times as many messages that longer intervals must bring."""
FIRST_STAY: Final = 64
"""Looks for which it stays as the trial said, the first time; twice as many each time that it says the same."""
LONGEST_STAY: Final = 4096


class DeliveryInterval:
    """One server's. It is told of the load some times a second.

    Attributes:
        ms: How long an interval takes now.
    """

    def __init__(self, least_ms: int, most_ms: int) -> None:
        """Let an interval take ``least_ms``, and up to ``most_ms`` (not above ``LONGEST_MS``) under full load."""
        self.ms: float = least_ms
        self._least_ms = least_ms
        self._most_ms = max(least_ms, min(most_ms, LONGEST_MS))
        self._stay = FIRST_STAY
        self._was_better: bool | None = None  # longer intervals, in the last trial
        self._rest = 0  # looks until the next trial may begin
        self._is_longer = False  # a trial, or what it led to, is under way
        self._looks = 0  # since that is so
        self._messages = 0  # since a part of that
        self._seconds = 0.0
        self._rate = 0.0  # messages a second before the trial
        self._end = TRIAL  # looks until it ends, or what it led to

    @property
    def is_longer(self) -> bool:
        """Whether an interval takes longer than it is set to."""
        return self.ms > self._least_ms

    def adapt(self, load: Load, deliveries: int, messages: int) -> None:
        """Let intervals be longer or shorter.

        Args:
            load: What the loop was since the last call.
            deliveries: Since then: times that a channel delivered all it had.
            messages: Since then: delivered in all.
        """
        if not self._least_ms or load.seconds <= 0:
            return
        is_full = load.busy >= FULL_LOAD and deliveries >= MANY_DELIVERIES * load.seconds
        self._looks += 1
        self._messages += messages
        self._seconds += load.seconds
        if not self._is_longer:
            self._look_for_trial(is_full=is_full)
            return
        if is_full:
            self.ms = min(self.ms * LONGER, self._most_ms)
        elif load.busy < SPARE_LOAD or deliveries < FEW_DELIVERIES * load.seconds:
            self.ms = max(self.ms * SHORTER, self._least_ms)
            if not self.is_longer:
                self._begin(is_longer=False)
                return
        if self._looks == self._end - MEASURED:
            self._messages, self._seconds = 0, 0.0
        elif self._looks == self._end:
            self._end_trial()

    def _look_for_trial(self, *, is_full: bool) -> None:
        """Begin a trial once the loop has been full for long enough."""
        self._rest = max(self._rest - 1, 0)
        if not is_full:
            self._begin(is_longer=False)
        elif self._looks >= MEASURED and not self._rest:
            self._rate = self._messages / self._seconds
            self._end = TRIAL
            self._begin(is_longer=True)

    def _end_trial(self) -> None:
        """Stay as it is if that was worth it, else go back; or go back for the next trial."""
        if self._end > TRIAL:
            self._begin(is_longer=False)
            return
        is_better = self._messages / self._seconds >= GAIN * self._rate
        self._stay = min(2 * self._stay, LONGEST_STAY) if is_better == self._was_better else FIRST_STAY
        self._was_better = is_better
        if is_better:
            self._end += self._stay
        else:
            self._rest = self._stay
            self._begin(is_longer=False)

    def _begin(self, *, is_longer: bool) -> None:
        """Begin to measure, with intervals of the least length."""
        self._is_longer = is_longer
        self.ms = self._least_ms
        self._looks = 0
        self._messages, self._seconds = 0, 0.0
