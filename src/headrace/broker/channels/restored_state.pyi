class RestoredState:
    """What a journal says of one channel; ``Channel.restore`` makes one, ``Channel.add_queue`` takes from it."""
