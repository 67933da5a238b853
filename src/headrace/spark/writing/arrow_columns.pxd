# Columns of an Arrow batch, through Arrow's C data interface: their buffers are borrowed, so pyarrow is not needed to
# compile, and nothing may be kept of a batch that is gone.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

cdef enum:                              # how a column lies in memory
    ABSENT = 0
    TEXT
    LONG_TEXT
    INT8
    INT16
    INT32
    INT64
    TIME
    LIST
    MAP

cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void* release
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void* release
    void* private_data

cdef struct Column:
    int kind
    int64_t offset
    const uint8_t* validity             # NULL: no value is missing
    const void* data                    # values, or the bytes of texts
    const void* offsets                 # of texts, lists and maps
    int64_t multiply                    # of times: to milliseconds
    int64_t divide

cdef struct Text:
    const uint8_t* at                   # NULL: there is none
    int64_t size

# Point a column at its buffers. Raises: TypeError: it is of a type that no column of ours has.
cdef int bind_column(Column* column, const ArrowSchema* schema, const ArrowArray* array, int64_t offset) except -1


cdef inline bint is_null(const Column* column, int64_t row) noexcept nogil:
    cdef int64_t at = column.offset + row
    if column.kind == ABSENT:
        return True
    return column.validity != NULL and not (column.validity[at >> 3] >> (at & 7)) & 1


cdef inline Text text_at(const Column* column, int64_t row) noexcept nogil:
    """Return the text of a row; ``at`` is NULL when there is none, never for an empty one."""
    cdef Text text
    cdef int64_t at = column.offset + row
    cdef int64_t start
    text.at = NULL
    text.size = 0
    if is_null(column, row):
        return text
    if column.kind == TEXT:
        start = (<const int32_t*>column.offsets)[at]
        text.size = (<const int32_t*>column.offsets)[at + 1] - start
    else:
        start = (<const int64_t*>column.offsets)[at]
        text.size = (<const int64_t*>column.offsets)[at + 1] - start
    # Arrow need not allocate bytes for texts that are all empty.
    text.at = <const uint8_t*>column.data + start if column.data != NULL else <const uint8_t*>b""
    return text


cdef inline int64_t integer_at(const Column* column, int64_t row) noexcept nogil:
    cdef int64_t at = column.offset + row
    if column.kind == INT32:
        return (<const int32_t*>column.data)[at]
    if column.kind == INT64:
        return (<const int64_t*>column.data)[at]
    if column.kind == INT16:
        return (<const int16_t*>column.data)[at]
    return (<const int8_t*>column.data)[at]


cdef inline int64_t milliseconds_at(const Column* column, int64_t row) noexcept nogil:
    """Return a time as whole milliseconds, rounded down."""
    cdef int64_t value = (<const int64_t*>column.data)[column.offset + row]
    cdef int64_t whole = value / column.divide
    if value < 0 and whole * column.divide != value:
        whole -= 1
    return whole * column.multiply
