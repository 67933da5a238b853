from libc.stdint cimport int64_t
from headrace.batch cimport PublishBatch
from headrace.store.index_file cimport IndexFile, KeyRef

cdef struct KeyRefs:
    KeyRef* refs
    Py_ssize_t count
    Py_ssize_t capacity

cdef class KeyIndex:
    cdef public object provide_file         # (store time of its first entry) -> IndexFile; raises OSError
    cdef public object on_error             # (error): a file could not be made or written
    cdef readonly IndexFile active          # None before the first key
    cdef readonly int64_t indexed_offset    # the keys of every record below are in
    cdef readonly int64_t keys_ahead        # so many keys of the records from there on are in too
    cdef readonly int64_t added_keys        # since the index was opened
    cdef readonly bint is_live              # appends put their keys in themselves; nobody else adds any meanwhile
    cdef KeyRefs appended
    cdef KeyRefs walked
    cdef int take(self, PublishBatch batch, int64_t from_offset, int64_t to_offset, int64_t now_ms) except -1
    cdef int _insert(self, KeyRefs* keys) except -1
    cdef int _write_behind(self) except -1
