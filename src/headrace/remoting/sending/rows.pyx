"""The body of SEND_SEQUENCED: from a batch encoding to entries of a batch, behind one entry for the state record.

The encoding is that of SEND_BATCH_MESSAGE, and each message is taken as a plain send's is (send_intake.pyx): its properties
are copied once, its body is borrowed. Entry 0 is left free: what the broker notes about the batch is appended with it and
before it, so that a crash leaves both or neither, and ``__BATCH#`` stands on a record that no consumer sees.

Layout of one message: total i32 | magic i32 | crc i32 | flag i32 | length i32, body | length i16, properties.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memset

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.format.record cimport load_u16, load_u32
from headrace.remoting.sending.send_intake cimport Limits, SendIntake, take_message

from headrace.errors import ProtocolError

cdef enum:
    HEAD_BYTES = 22                     # a message with nothing variable


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
        cdef Py_ssize_t left = len(body)
        cdef int64_t total, size, own_bytes
        cdef Py_ssize_t row = 0
        self.clear()
        intake.batch.add()              # of the state record
        memset(&common, 0, sizeof(common))
        common.destination = 1
        common.born_ms = born_ms
        common.sys_flag = sys_flag
        while left > 0:
            if left < HEAD_BYTES:
                raise ProtocolError(f"row {row} is cut short", fatal=False)
            total = <int32_t>load_u32(at)
            common.flag = load_u32(at + 12)
            size = <int32_t>load_u32(at + 16)
            if size < 0 or size > left - HEAD_BYTES:
                raise ProtocolError(f"row {row} has a body of {size} bytes, {left - HEAD_BYTES} are there", fatal=False)
            own_bytes = <int16_t>load_u16(at + 20 + size)
            if own_bytes < 0 or total != HEAD_BYTES + size + own_bytes or total > left:
                raise ProtocolError(f"row {row} has lengths that do not add up to its {total} bytes", fatal=False)
            if row >= skip:
                if size > self.limits.max_message_bytes:
                    raise ProtocolError(too_large(row, size, self.limits.max_message_bytes), fatal=False)
                common.body = at + 20
                common.body_bytes = <uint32_t>size
                if not take_message(intake, self.limits, &common, at + 22 + size, own_bytes, NULL, NULL):
                    return row
            at += total
            left -= total
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
