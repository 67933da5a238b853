"""Columns of an Arrow batch: which of its buffers each one lies in. The values are read by what arrow_columns.pxd has."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset, strcmp, strncmp


cdef int bind_column(Column* column, const ArrowSchema* schema, const ArrowArray* array, int64_t offset) except -1:
    cdef const char* form = schema.format
    memset(column, 0, sizeof(Column))
    column.offset = array.offset + offset
    column.validity = <const uint8_t*>array.buffers[0] if array.n_buffers > 0 and array.null_count != 0 else NULL
    if schema.dictionary != NULL:
        raise TypeError(f"column {schema.name.decode()!r} is dictionary encoded")
    if strcmp(form, b"n") == 0:
        return 0                        # a column of nothing but nulls
    if strcmp(form, b"u") == 0 or strcmp(form, b"z") == 0 or strcmp(form, b"U") == 0 or strcmp(form, b"Z") == 0:
        column.kind = TEXT if form[0] == c"u" or form[0] == c"z" else LONG_TEXT
        column.offsets = array.buffers[1]
        column.data = array.buffers[2]
    elif strncmp(form, b"ts", 2) == 0 and form[3] == c":":
        column.kind = TIME
        column.data = array.buffers[1]
        column.multiply = 1000 if form[2] == c"s" else 1
        column.divide = 1000 if form[2] == c"u" else 1000000 if form[2] == c"n" else 1
    elif strcmp(form, b"+l") == 0:
        column.kind = LIST
        column.offsets = array.buffers[1]
    elif strcmp(form, b"+m") == 0:
        column.kind = MAP
        column.offsets = array.buffers[1]
    else:
        column.data = array.buffers[1] if array.n_buffers > 1 else NULL
        if strcmp(form, b"c") == 0:
            column.kind = INT8
        elif strcmp(form, b"s") == 0:
            column.kind = INT16
        elif strcmp(form, b"i") == 0:
            column.kind = INT32
        elif strcmp(form, b"l") == 0:
            column.kind = INT64
        else:
            raise TypeError(f"column {schema.name.decode()!r} is of Arrow type {form.decode()!r}")
    return 0
