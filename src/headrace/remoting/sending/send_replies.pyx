"""Responses to plain sends, written byte by byte: what never changes in one is copied.

The id of a message is where it lies.

Ref: remoting.md 2.5, 2.9.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from headrace.batch cimport PublishEntry
from headrace.format.record cimport store_u16, store_u32
from headrace.remoting.header cimport FLAG_RESPONSE, SERIALIZE_BINARY, put_bytes, put_number

cdef const char* JSON_1 = b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"'
cdef const char* JSON_2 = b'","queueId":"'
cdef const char* JSON_3 = b'","queueOffset":"'
cdef const char* JSON_4 = b'"},"flag":1,"language":"PYTHON","opaque":'
cdef const char* JSON_5 = b',"serializeTypeCurrentRPC":"JSON","version":409}'
cdef enum:
    JSON_1_BYTES = 79
    JSON_2_BYTES = 13
    JSON_3_BYTES = 17
    JSON_4_BYTES = 41
    JSON_5_BYTES = 48

# language PYTHON, version 409, then opaque, flag 1, no remark; extFields that never change
cdef const char* BINARY_FIELDS = b"\0\x0aMSG_REGION\0\0\0\x0dDefaultRegion\0\x08TRACE_ON\0\0\0\x04true\0\x05msgId"
cdef enum:
    BINARY_FIELDS_BYTES = 54

cdef uint16_t[256] _hex_pairs


cdef int _fill_tables() except -1:
    cdef int value
    cdef uint8_t[2] pair
    cdef const uint8_t* digit = b"0123456789ABCDEF"
    for value in range(256):
        pair[0] = digit[value >> 4]
        pair[1] = digit[value & 15]
        memcpy(&_hex_pairs[value], pair, 2)
    return 0


_fill_tables()


cdef inline char* _put_id(char* at, const char* host, Py_ssize_t host_chars, int64_t physical_offset) noexcept nogil:
    cdef int shift
    at = put_bytes(at, host, host_chars)
    for shift in range(56, -8, -8):
        memcpy(at, &_hex_pairs[(<uint64_t>physical_offset >> shift) & 255], 2)
        at += 2
    return at


cdef char* put_reply(char* at, const Send* send, const PublishEntry* entry, int64_t queue_id, const char* host,
                     Py_ssize_t host_chars) noexcept nogil:
    cdef char* frame = at
    cdef char* mark
    cdef uint32_t index
    if send.serialize == SERIALIZE_BINARY:
        at += 8
        store_u16(at, 0)
        at[2] = 3
        store_u16(at + 3, 409)
        store_u32(at + 5, <uint32_t>send.opaque)
        store_u32(at + 9, FLAG_RESPONSE)
        store_u32(at + 13, 0)
        at = put_bytes(at + 21, BINARY_FIELDS, BINARY_FIELDS_BYTES)
        mark = at
        at += 4
        for index in range(send.entries):
            if index:
                at[0] = c","
                at += 1
            at = _put_id(at, host, host_chars, entry[index].physical_offset)
        store_u32(mark, <uint32_t>(at - mark - 4))
        at = put_bytes(at, b"\0\x07queueId", 9)
        mark = at
        at = put_number(at + 4, queue_id)
        store_u32(mark, <uint32_t>(at - mark - 4))
        at = put_bytes(at, b"\0\x0bqueueOffset", 13)
        mark = at
        at = put_number(at + 4, entry.queue_offset)
        store_u32(mark, <uint32_t>(at - mark - 4))
        if send.unique != NULL:
            at = put_bytes(at, b"\0\x0dtransactionId", 15)
            store_u32(at, send.unique_bytes)
            at = put_bytes(at + 4, send.unique, send.unique_bytes)
        store_u32(frame + 25, <uint32_t>(at - frame - 29))
    else:
        at = put_bytes(at + 8, JSON_1, JSON_1_BYTES)
        for index in range(send.entries):
            if index:
                at[0] = c","
                at += 1
            at = _put_id(at, host, host_chars, entry[index].physical_offset)
        at = put_bytes(at, JSON_2, JSON_2_BYTES)
        at = put_number(at, queue_id)
        at = put_bytes(at, JSON_3, JSON_3_BYTES)
        at = put_number(at, entry.queue_offset)
        if send.unique != NULL:
            at = put_bytes(at, b'","transactionId":"', 19)
            at = put_bytes(at, send.unique, send.unique_bytes)
        at = put_bytes(at, JSON_4, JSON_4_BYTES)
        at = put_number(at, send.opaque)
        at = put_bytes(at, JSON_5, JSON_5_BYTES)
    store_u32(frame, <uint32_t>(at - frame - 4))
    store_u32(frame + 4, <uint32_t>send.serialize << 24 | <uint32_t>(at - frame - 8))
    return at
