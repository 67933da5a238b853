"""What nsqlookupds are told: the commands for all that there is, and for what has changed.

A change is a topic's name and a channel's, empty for the topic itself. What becomes of it is read when it is said, so
that whatever happened to it meanwhile ends in what is so now, in whichever order it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.broker.topic import Topic
from headrace.nsq.lookup_peers.codec import encode_register, encode_unregister
from headrace.nsq.names import is_spelled
from headrace.nsq.stats import is_listed

Change = tuple[str, str]


def present(topics: Mapping[str, Topic]) -> Iterator[Change]:
    """Yield each topic without channels, and each channel of the others.

    Topics may come and go meanwhile: those that went before their turn are left out, those that come are not said.
    """
    for topic in list(topics.values()):
        if topics.get(topic.name) is not topic or not is_listed(topic):
            continue
        is_said = False
        for name in list(topic.channels):
            if topics.get(topic.name) is topic and name in topic.channels and is_spelled(name):
                yield topic.name, name
                is_said = True
        if not is_said and topics.get(topic.name) is topic:
            yield topic.name, ""


def is_there(topics: Mapping[str, Topic], change: Change) -> bool:
    """Return whether a topic is shown, or has the channel."""
    topic_name, channel = change
    topic = topics.get(topic_name)
    return topic is not None and is_listed(topic) and (not channel or channel in topic.channels)


def announce_all(topics: Mapping[str, Topic]) -> Iterator[bytes]:
    """Yield the registration of all that is ``present``."""
    return (encode_register(topic_name, channel) for topic_name, channel in present(topics))


def announce_changes(topics: Mapping[str, Topic], changes: Iterable[Change]) -> Iterator[bytes]:
    """Yield the registration of what is there of some changes, and the end of what is not."""
    for change in changes:
        yield (encode_register if is_there(topics, change) else encode_unregister)(*change)


def changes_of(topic: Topic, channel: str) -> Iterator[Change]:
    """Yield what there is to say when a topic, or a channel of it, was made or deleted; nothing NSQ cannot spell."""
    if is_spelled(topic.name) and is_spelled(channel or topic.name):
        yield topic.name, channel
        if topic.is_system and channel:  # it is shown while it has channels
            yield topic.name, ""
