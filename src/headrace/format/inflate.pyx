"""Bodies that a RocketMQ client compressed, made readable for clients that know nothing of it.

RocketMQ clients compress large bodies and say so in the record's system flag; the log keeps them as they came, and
RocketMQ consumers decompress. Consumers of other protocols get what was sent before it was compressed: ``inflate_bodies``
replaces the views of such bodies by views of decompressed copies, which the batch keeps alive.

Ref: docs/protocols/mapping.md. The system flag's bit 0 says that a body is compressed, its bits 8 to 10 how.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from headrace.batch cimport RecordBatch, RecordView
from headrace.format.compression import INFLATE_ERRORS, MAX_INFLATED_BYTES, inflate
from headrace.format.record cimport load_u32

cdef enum:
    SYS_FLAG_AT = 36
    COMPRESSED = 0x1
    KIND_SHIFT = 8
    KIND_MASK = 0x7
    DEFLATE_RATIO = 1032        # bytes that one of a deflated body stands for, at most

cdef int64_t _MOST_OF_ONE = MAX_INFLATED_BYTES


def inflate_bodies(RecordBatch batch not None, int64_t most_bytes):
    cdef Py_ssize_t index
    cdef RecordView* view
    cdef uint32_t flag
    cdef bytes plain
    cdef bint any_compressed = False
    cdef int failed = 0
    cdef int64_t spent = 0
    for index in range(batch.count):
        view = &batch.views[index]
        flag = load_u32(<const uint8_t*>view.record + SYS_FLAG_AT)
        if not flag & COMPRESSED:
            continue
        if spent >= most_bytes:
            return index, failed, spent
        any_compressed = True
        try:
            plain = inflate(view.body[:view.body_bytes], (flag >> KIND_SHIFT) & KIND_MASK)
        except INFLATE_ERRORS as error:
            failed += 1
            if isinstance(error, ValueError):
                spent += _MOST_OF_ONE   # one that is too large was decompressed up to there
            else:                       # one that zlib finds damaged, perhaps behind all that it stands for
                spent += min(_MOST_OF_ONE, <int64_t>DEFLATE_RATIO * view.body_bytes)
            continue
        batch.pins.append(plain)
        view.body = plain
        view.body_bytes = <uint32_t>len(plain)
        spent += view.body_bytes
    return (batch.count, failed, spent) if any_compressed else None
