"""The broker's side of nsqlookupd: consumers that ask one find this broker and its topics.

``peers`` keeps a ``link`` to each nsqlookupd in the settings: a task that connects, says who this broker is, registers
every topic and channel, then what changes, and pings. ``connection`` is one TCP connection with replies in the order of
commands, ``codec`` the bytes of protocol V1 without I/O, ``announcements`` what there is to say. ``channel_queries``
asks for the channels that others have of a topic that was made here, over HTTP (``http_query``, whose bytes ``answer``
reads), so that a new node loses nothing of what they should get; ``counters`` counts. The nsqlookupd in this process is
told without a connection (``own``).

Nothing here holds up the core: it tells what was made and deleted (``Broker.presence_listeners``), and that is noted.
A nsqlookupd that does not answer is closed, tried again after growing pauses, and told everything again.
Ref: nsq.md 4.1, 4.4; docs/protocols/nsq.md, "nsqlookupd".
"""
