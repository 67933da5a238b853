"""What the reads of one turn of the event loop bring, done together at its end: see joint_turn.pyi."""

import asyncio
import logging

logger = logging.getLogger(__name__)

MAX_SHARE_BYTES = 4096
MEMORY_BYTES = 256 * 1024
LONE_TURNS = 8
ALONE = 64


cdef class JointTurn:
    def __init__(self):
        self.call_soon = None
        self._shares = []

    def __class_getitem__(cls, item):
        return cls

    def append(self, list shares not None):
        raise NotImplementedError

    def clear(self):
        raise NotImplementedError

    cpdef bint is_worth_it(self):
        if self._alone:
            self._alone -= 1
            return False
        return True

    cpdef int add(self, object share) except -1:
        if self._is_ending:     # its batch is about to be cleared: it would be answered as stored
            raise RuntimeError("what is appended at the end of a turn was added to")
        if not self._shares:
            if self.call_soon is None:  # to ask for the loop each turn costs a system call
                self.call_soon = asyncio.get_running_loop().call_soon
            self.call_soon(self.end_turn)
        self._shares.append(share)
        return 0

    cpdef int end_turn(self) except -1:
        cdef list shares = self._shares
        if not shares:
            return 0
        self._shares = []
        if len(shares) > 1:
            self.joined += len(shares)
            self._lone_turns = 0
        else:
            self._lone_turns += 1
            if self._lone_turns >= LONE_TURNS:
                self._alone = ALONE
                self._lone_turns = 0
        self._is_ending = True
        try:
            self.append(shares)
        except Exception:
            logger.exception("what %d clients publish failed by a bug", len(shares))
            for share in shares:
                share.client.abort("internal error")
        finally:
            self._is_ending = False
            self.clear()
        return 0
