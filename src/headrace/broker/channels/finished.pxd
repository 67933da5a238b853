# A set of queue offsets that is complete below a floor: see finished.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint64_t
from headrace.broker.channels.channel_state cimport StateWriter

cdef enum:
    PAGE_SHIFT = 15
    PAGE_OFFSETS = 32768
    PAGE_WORDS = 512

cdef struct Page:
    uint64_t words[512]         # 1 bit per offset
    uint64_t changed[8]         # 1 bit per word that changed since the last write_changes()
    int32_t count               # bits set, those below the floor included

cdef class FinishedSet:
    cdef readonly int64_t floor         # every offset below is in the set; floor itself is not
    cdef readonly int64_t ahead         # members above the floor
    cdef bint records_changes
    cdef Page** pages                   # NULL: empty; &FULL: every offset; pages[first] covers first_page
    cdef Py_ssize_t first
    cdef Py_ssize_t page_count
    cdef Py_ssize_t page_capacity
    cdef int64_t first_page
    cdef int64_t first_end              # first offset behind pages[first]; INT64_MAX when there is no page
    cdef Page* spare
    cdef int64_t* changed_pages
    cdef Py_ssize_t changed_count
    cdef Py_ssize_t changed_capacity
    cdef int64_t written_floor          # floor of the last write_changes()
    cdef Page* _new_page(self) except NULL
    cdef void _drop_page(self, Page* page) noexcept
    cdef int _reserve(self, Py_ssize_t wanted) except -1
    cdef Page** _slot(self, int64_t page) except NULL
    cdef int _note(self, Page* page, int64_t number, int64_t word) except -1
    cdef int _note_page(self, int64_t number) except -1
    cdef int _advance(self) except -1
    cdef bint add(self, int64_t offset) except -1
    cdef bint contains(self, int64_t offset) noexcept
    cdef int64_t count_range(self, int64_t start, int64_t end) noexcept
    cdef int64_t raise_floor(self, int64_t to) except -1
    cdef int64_t add_range(self, int64_t start, int64_t end) except -1
    cdef int64_t truncate(self, int64_t end) except -1
    cdef int add_word(self, int64_t page, int64_t word, uint64_t bits) except -1
    cdef int add_page(self, int64_t page) except -1
    cdef FinishedSet copy(self)
    cdef bint has_changes(self) noexcept
    cdef int write_changes(self, StateWriter writer, int queue_id) except -1
    cdef int write_all(self, StateWriter writer, int queue_id) except -1
    cdef int trim(self) except -1
