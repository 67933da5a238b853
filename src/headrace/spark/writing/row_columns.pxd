# The columns of a batch of rows by what they are read for, and which of them has a value that no message can have.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from headrace.spark.writing.arrow_columns cimport ArrowArray, ArrowSchema, Column

cdef enum:                              # what a column is read for
    BODY = 0
    TOPIC
    TAGS
    KEYS
    PROPERTIES
    SHARDING_KEY
    QUEUE_ID
    DELIVER_AT
    DELAY_LEVEL
    FLAG
    UNIQUE_KEY
    BORN_TS
    SYS_FLAG
    ROLES

cdef enum:                              # what has come of a row: it is encoded, or why it is not
    DONE = 0
    MUST_SEAL
    MUST_SEAL_ALL
    NEW_TOPIC
    NULL_BODY
    NULL_TOPIC
    NULL_KEY
    BAD_SEPARATOR
    BAD_KEYS
    BAD_QUEUE
    BAD_FLAG
    BAD_DELAY
    EARLY_TIME
    TWO_DELAYS
    LONG_PROPERTIES
    LONG_MESSAGE
    LONG_TOPIC
    BAD_TOPIC
    NO_MEMORY

cdef struct Name:
    const uint8_t* at
    uint32_t size

@cython.final
cdef class RowColumns:
    cdef Column[ROLES] of_role
    cdef Column items                   # of KEYS as a list
    cdef Column names                   # of PROPERTIES
    cdef Column values
    cdef Column* extras
    cdef Name* extra_names
    cdef Py_ssize_t extra_count
    cdef int32_t[ROLES] positions       # in the batch; -1: there is none
    cdef int32_t* extra_positions
    cdef list kept                      # what the names point into

    cdef int fault_role                 # -1: a further column, ``fault_extra``
    cdef Py_ssize_t fault_extra
    cdef int64_t fault_value

    # Point the columns at a batch's buffers. Raises: TypeError: one is missing, or has a type that its role cannot have.
    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1
    # Note which column is at fault, with what value; returns the status.
    cdef int fail(self, int status, int role, int64_t value) noexcept nogil
    # Return the error for the row at fault. ``names``: of the batch's columns; ``facts``: what the reasons below ask for.
    cdef object error(self, int status, int partition, int64_t row, list names, dict facts)
