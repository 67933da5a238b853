"""Messages withheld from consumers: each lies in an internal topic and is appended a second time when it may be seen.

``schedule`` holds those of a delay level, ``timed`` those with a time of their own, ``transactions`` half messages
(``half_message``) until they are committed (``transaction_end``) or given up (``given_up``): ``open_halves`` are those
that nobody decided, ``renewal`` writes newer copies of them, ``decided_floors`` says up to where all are decided, and
``transaction_opening`` finds both at a start. ``retry`` takes what consumers send back. ``redelivery`` is the loop that
they share: read, append again, and move on only when that is durable. ``message_services`` builds all of it.

Must not know a protocol. Ref: docs/formats/delayed-messages.md, docs/formats/transactions.md.
"""
