# The properties of the message that a row becomes, as they lie in the message.

cimport cython
from libc.stdint cimport int64_t, uint8_t

from headrace.spark.writing.arrow_columns cimport Text
from headrace.spark.writing.row_columns cimport RowColumns

cdef enum:
    # Of a broker: CLUSTER with a name of 255 bytes (264), a checksum (20); of a delayed message REAL_TOPIC (139) and
    # REAL_QID (15), and RocketMQ's TIMER_OUT_MS (27); RocketMQ's MSG_REGION and TRACE_ON (39): 504 together.
    BROKERS_PROPERTIES_BYTES = 512
    MAX_PROPERTIES_BYTES = 32767 - BROKERS_PROPERTIES_BYTES

@cython.final
cdef class RowProperties:
    cdef RowColumns columns
    cdef bytes key_prefix
    cdef const char* prefix
    cdef int64_t prefix_bytes
    cdef bint key_required

    cdef uint8_t* at                    # of the row written last
    cdef int64_t used
    cdef bint is_delayed
    cdef int64_t left_out               # properties of its map that are the broker's own

    # Write those of a row, ``number`` in its partition. Returns DONE, or a status that ``columns`` has the rest of.
    cdef int write(self, int64_t row, int64_t number) noexcept nogil
    cdef int _put(self, const char* name, int64_t name_bytes, const Text* value, int role) noexcept nogil
    cdef int _put_keys(self, int64_t row) noexcept nogil
    cdef int _put_number(self, const char* name, int64_t name_bytes, int64_t number, int role) noexcept nogil
    cdef int _put_delay(self, int64_t row) noexcept nogil
    cdef int _put_map(self, int64_t row, bint has_tags, bint has_keys, bint has_sharding_key,
                      bint* has_key) noexcept nogil
    cdef bint _is_extra(self, const Text* name, int64_t row) noexcept nogil
    cdef int _put_made_key(self, int64_t row, int64_t number) noexcept nogil
    cdef int _longest(self, int64_t row) noexcept nogil
