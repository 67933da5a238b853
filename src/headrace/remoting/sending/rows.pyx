"""The body of SEND_SEQUENCED: from a batch encoding to entries of a batch, behind one entry for the state record.

The encoding is that of SEND_BATCH_MESSAGE, and each message is taken as a plain send's is (plain_send.pyx): its properties
are copied once, its body is borrowed. Entry 0 is left free: what the broker notes about the batch is appended with it and
before it, so that a crash leaves both or neither, and ``__BATCH#`` stands on a record that no consumer sees.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.remoting.sending.plain_send cimport read_part, take_message
from headrace.remoting.sending.send_intake cimport Limits, SendIntake

from headrace.errors import ProtocolError


def too_large(row, body_bytes, most):
    return f"row {row} has a body of {body_bytes} bytes, above remoting.max_message_bytes = {most}"


cdef class RowIntake:
    def __init__(self, Limits limits not None):
        self.limits = limits
        self.intake = SendIntake()

    @property
    def batch(self):
        return self.intake.batch

    def take(self, bytes body not None, Py_ssize_t expected, Py_ssize_t skip, int64_t born_ms, uint32_t sys_flag):
        cdef SendIntake intake = self.intake
        cdef PublishEntry common
        cdef const char* at = PyBytes_AS_STRING(body)
        cdef const char* end = at + len(body)
        cdef const char* wrong
        cdef Py_ssize_t own_bytes
        cdef Py_ssize_t row = 0
        self.clear()
        intake.batch.add()              # of the state record
        memset(&common, 0, sizeof(common))
        common.destination = 1
        common.born_ms = born_ms
        common.sys_flag = sys_flag
        while at < end:
            wrong = read_part(at, end, &common, &own_bytes)
            if wrong != NULL:
                raise ProtocolError(f"row {row} {(<bytes>wrong).decode()}", fatal=False)
            at = common.body + common.body_bytes + 2
            if row >= skip:
                if common.body_bytes > self.limits.max_message_bytes:
                    raise ProtocolError(too_large(row, common.body_bytes, self.limits.max_message_bytes), fatal=False)
                if not take_message(intake, self.limits, &common, at, own_bytes, NULL, NULL):
                    return row
            at += own_bytes
            row += 1
        if row != expected:
            raise ProtocolError(f"{row} rows came where count = {expected} were announced", fatal=False)
        intake.batch.owner = body
        return -1

    def set_record(self, bytes record not None):
        cdef PublishBatch batch = self.intake.batch
        cdef PublishEntry* entry
        if batch.count == 0:
            raise ValueError("there are no rows")
        entry = &batch.entries[0]
        batch.owner = (batch.owner, record)
        batch.body_bytes += <int64_t>len(record) - entry.body_bytes
        entry.body = PyBytes_AS_STRING(record)
        entry.body_bytes = <uint32_t>len(record)
        entry.command_entries = <uint32_t>batch.count

    def clear(self):
        self.intake.clear()
