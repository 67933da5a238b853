# Arrays that grow as they are filled.

from libc.stdlib cimport realloc


cdef inline int reserve(void** array, Py_ssize_t* capacity, Py_ssize_t wanted, Py_ssize_t first,
                        size_t item_bytes) except -1:
    """Make room for ``wanted`` items: twice as much as there was, or more, and ``first`` at the least."""
    cdef void* grown
    if wanted <= capacity[0]:
        return 0
    wanted = max(wanted, capacity[0] * 2, first)
    grown = realloc(array[0], wanted * item_bytes)
    if grown == NULL:
        raise MemoryError(f"cannot grow an array to {wanted} items of {item_bytes} bytes")
    array[0] = grown
    capacity[0] = wanted
    return 0
