"""FinishedSet: which messages of one queue a channel has done with.

Invariants: every offset below ``floor`` is a member and ``floor`` itself is not; ``ahead`` counts the members above
it; bits below the floor mean nothing. A page leaves when the floor passes its end, so a channel that keeps up owns at
most one. Changes are tracked per 64-bit word, so that what a journal has to write grows with what changed, and
writing the same word twice is harmless: members never leave.

Rejected: a list of ranges (a random half of ten million finished is 40 MB of ranges and log n per FIN; here it is
1.25 MB and one bit operation).
"""

from libc.stdint cimport INT64_MAX, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from headrace.broker.channels.channel_state cimport SECTION_FULL_PAGE, SECTION_WORDS
from headrace.format.arrays cimport reserve


cdef extern from *:
    int __builtin_ctzll(unsigned long long) noexcept nogil
    int __builtin_popcountll(unsigned long long) noexcept nogil

cdef Page FULL          # stands for every page all of whose offsets are members


cdef class FinishedSet:
    def __cinit__(self, int64_t floor=0, *, bint records_changes=True):
        self.floor = floor
        self.written_floor = floor
        self.records_changes = records_changes
        self.first_end = INT64_MAX

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.first, self.first + self.page_count):
            if self.pages[i] != &FULL:
                free(self.pages[i])
        free(self.pages)
        free(self.spare)
        free(self.changed_pages)

    def __contains__(self, int64_t offset):
        return self.contains(offset)

    def finish(self, int64_t offset):
        return self.add(offset)

    def finish_range(self, int64_t start, int64_t end):
        return self.add_range(start, end)

    def count_between(self, int64_t start, int64_t end):
        return self.count_range(start, end)

    def lift(self, int64_t floor):
        return self.raise_floor(floor)

    def cut(self, int64_t end):
        return self.truncate(end)

    @property
    def memory_bytes(self):
        cdef Py_ssize_t i
        cdef int64_t total = self.page_capacity * sizeof(Page*) + self.changed_capacity * sizeof(int64_t)
        for i in range(self.first, self.first + self.page_count):
            if self.pages[i] != NULL and self.pages[i] != &FULL:
                total += sizeof(Page)
        if self.spare != NULL:
            total += sizeof(Page)
        return total

    # ---- pages

    cdef Page* _new_page(self) except NULL:
        cdef Page* page = self.spare
        if page != NULL:
            self.spare = NULL
            memset(page, 0, sizeof(Page))
            return page
        page = <Page*>calloc(1, sizeof(Page))
        if page == NULL:
            raise MemoryError("cannot allocate a page of finished offsets")
        return page

    cdef void _drop_page(self, Page* page) noexcept:
        if page == NULL or page == &FULL:
            return
        if self.spare == NULL:
            self.spare = page
        else:
            free(page)

    cdef Page** _slot(self, int64_t page) except NULL:
        """The directory slot of a page at or above the floor's; the directory grows to hold it."""
        cdef int64_t index, before
        if self.page_count == 0:
            self.first = 0
            self.first_page = self.floor >> PAGE_SHIFT
            self.first_end = (self.first_page + 1) << PAGE_SHIFT
        if page < self.first_page:      # only after truncate(): the floor went back
            before = self.first_page - page
            self._reserve(self.page_count + before)
            memmove(self.pages + before, self.pages + self.first, self.page_count * sizeof(Page*))
            memset(self.pages, 0, before * sizeof(Page*))
            self.first = 0
            self.page_count += before
            self.first_page = page
            self.first_end = (page + 1) << PAGE_SHIFT
        index = page - self.first_page
        if index >= self.page_count:
            self._reserve(index + 1)
            memset(self.pages + self.first + self.page_count, 0, (index + 1 - self.page_count) * sizeof(Page*))
            self.page_count = index + 1
        return &self.pages[self.first + index]

    cdef int _reserve(self, Py_ssize_t wanted) except -1:
        """Make room for ``wanted`` slots from ``first`` on."""
        if self.first + wanted <= self.page_capacity:
            return 0
        if self.first:
            memmove(self.pages, self.pages + self.first, self.page_count * sizeof(Page*))
            self.first = 0
        return reserve(<void**>&self.pages, &self.page_capacity, wanted, 4, sizeof(Page*))

    cdef int _note_page(self, int64_t number) except -1:
        reserve(<void**>&self.changed_pages, &self.changed_capacity, self.changed_count + 1, 8, sizeof(int64_t))
        self.changed_pages[self.changed_count] = number
        self.changed_count += 1
        return 0

    cdef int _note(self, Page* page, int64_t number, int64_t word) except -1:
        cdef int i
        cdef uint64_t known = page.changed[word >> 6]
        if known >> (word & 63) & 1:
            return 0
        if known == 0:      # the page is on the list when any of its words is
            for i in range(8):
                known |= page.changed[i]
            if known == 0:
                self._note_page(number)
        page.changed[word >> 6] |= (<uint64_t>1) << (word & 63)
        return 0

    # ---- membership

    cdef bint add(self, int64_t offset) except -1:
        """Add one offset; False when it was a member already."""
        cdef Page** slot
        cdef Page* page
        cdef int64_t number, word
        cdef uint64_t bit
        if offset <= self.floor:
            if offset < self.floor:
                return False
            self.floor += 1
            if self.ahead or self.floor >= self.first_end:
                self._advance()
            return True
        number = offset >> PAGE_SHIFT
        slot = self._slot(number)
        page = slot[0]
        if page == &FULL:
            return False
        if page == NULL:
            page = slot[0] = self._new_page()
        word = offset >> 6 & (PAGE_WORDS - 1)
        bit = (<uint64_t>1) << (offset & 63)
        if page.words[word] & bit:
            return False
        if self.records_changes:
            self._note(page, number, word)
        page.words[word] |= bit
        page.count += 1
        self.ahead += 1
        if page.count == PAGE_OFFSETS:
            slot[0] = &FULL         # whether it changed is asked of the list, which still names the page
            self._drop_page(page)
        return True

    cdef bint contains(self, int64_t offset) noexcept:
        cdef int64_t index = (offset >> PAGE_SHIFT) - self.first_page
        cdef Page* page
        if offset < self.floor:
            return True
        if index < 0 or index >= self.page_count or self.ahead == 0:
            return False
        page = self.pages[self.first + index]
        if page == NULL:
            return False
        return page == &FULL or page.words[offset >> 6 & (PAGE_WORDS - 1)] >> (offset & 63) & 1

    cdef int _advance(self) except -1:
        """Move the floor over the members that follow it, word by word; let go of the pages it has passed."""
        cdef Page* page
        cdef uint64_t gaps
        cdef int64_t run
        cdef int bit
        while self.page_count:
            if self.floor >= self.first_end:
                self._drop_page(self.pages[self.first])
                self.first += 1
                self.page_count -= 1
                self.first_page += 1
                self.first_end = self.first_end + PAGE_OFFSETS if self.page_count else INT64_MAX
                continue
            page = self.pages[self.first]
            if page == NULL or self.ahead == 0 or self.floor < self.first_end - PAGE_OFFSETS:
                return 0
            if page == &FULL:
                self.ahead -= self.first_end - self.floor
                self.floor = self.first_end
                continue
            bit = self.floor & 63
            gaps = ~(page.words[self.floor >> 6 & (PAGE_WORDS - 1)] >> bit)
            run = 64 - bit
            if gaps != 0 and __builtin_ctzll(gaps) < run:
                run = __builtin_ctzll(gaps)
                self.floor += run
                self.ahead -= run
                return 0
            self.floor += run
            self.ahead -= run
        self.first = 0
        return 0

    cdef int64_t count_range(self, int64_t start, int64_t end) noexcept:
        """How many members lie in [start, end)."""
        cdef int64_t total = 0
        cdef int64_t at, stop, word
        cdef uint64_t bits
        cdef Page* page
        if start < self.floor:
            total = min(end, self.floor) - start
            start = self.floor
        if start >= end or self.ahead == 0:
            return max(total, 0)
        at = max(start, self.first_page << PAGE_SHIFT)
        end = min(end, (self.first_page + self.page_count) << PAGE_SHIFT)
        while at < end:
            page = self.pages[self.first + (at >> PAGE_SHIFT) - self.first_page]
            stop = min(end, ((at >> PAGE_SHIFT) + 1) << PAGE_SHIFT)
            if page == NULL or page == &FULL:
                total += stop - at if page == &FULL else 0
                at = stop
                continue
            while at < stop:
                word = at >> 6
                bits = page.words[word & (PAGE_WORDS - 1)] >> (at & 63)
                if (word + 1) << 6 > stop:
                    bits &= ((<uint64_t>1) << (stop - at)) - 1
                total += __builtin_popcountll(bits)
                at = (word + 1) << 6
        return total

    cdef int64_t raise_floor(self, int64_t to) except -1:
        """Make every offset below ``to`` a member; return how many were not."""
        cdef int64_t known
        if to <= self.floor:
            return 0
        known = self.count_range(self.floor, to)
        cdef int64_t added = to - self.floor - known
        self.ahead -= known
        self.floor = to
        self._advance()
        return added

    cdef int64_t add_range(self, int64_t start, int64_t end) except -1:
        """Make every offset of [start, end) a member, page by page; return how many were not."""
        cdef int64_t added, stop, offset
        if start <= self.floor:
            return self.raise_floor(end)
        added = max(end - start, 0) - self.count_range(start, end)
        while start < end:
            stop = min(end, ((start >> PAGE_SHIFT) + 1) << PAGE_SHIFT)
            if stop - start == PAGE_OFFSETS:
                self.add_page(start >> PAGE_SHIFT)
            else:
                for offset in range(start, stop):
                    self.add(offset)
            start = stop
        return added

    cdef int64_t truncate(self, int64_t end) except -1:
        """Remove every member at or above ``end``; return how many there were."""
        cdef int64_t removed = self.count_range(end, INT64_MAX)
        cdef int64_t number = end >> PAGE_SHIFT
        cdef int64_t keep = number - self.first_page
        cdef int64_t word
        cdef Page* page
        if removed == 0:
            return 0
        while self.page_count and self.page_count > max(keep, -1) + 1:
            self._drop_page(self.pages[self.first + self.page_count - 1])
            self.page_count -= 1
        if self.page_count and 0 <= keep < self.page_count and self.pages[self.first + keep] != NULL:
            page = self.pages[self.first + keep]
            if page == &FULL:
                page = self.pages[self.first + keep] = self._new_page()
                memset(page.words, 0xFF, sizeof(page.words))
            word = end >> 6 & (PAGE_WORDS - 1)
            page.words[word] &= ((<uint64_t>1) << (end & 63)) - 1
            memset(&page.words[word + 1], 0, (PAGE_WORDS - 1 - word) * sizeof(uint64_t))
            page.count = 0
            for word in range(PAGE_WORDS):
                page.count += __builtin_popcountll(page.words[word])
        if self.page_count == 0:
            self.first = 0
            self.first_end = INT64_MAX
        if self.floor > end:
            self.floor = end
            self.ahead = 0
        else:
            self.ahead -= removed
        self.written_floor = -1
        return removed

    # ---- from and to a channel state

    cdef int add_word(self, int64_t page, int64_t word, uint64_t bits) except -1:
        """Add the members of one 64-bit word."""
        cdef int64_t base = (page << PAGE_SHIFT) + (word << 6)
        cdef int64_t offset
        while bits:
            offset = base + __builtin_ctzll(bits)
            bits &= bits - 1
            self.add(offset)
        return 0

    cdef int add_page(self, int64_t page) except -1:
        """Add every offset of one page."""
        cdef int64_t start = page << PAGE_SHIFT
        cdef Page** slot
        if self.floor >= start:
            self.raise_floor(start + PAGE_OFFSETS)
            return 0
        slot = self._slot(page)
        if slot[0] == &FULL:
            return 0
        if slot[0] != NULL:
            self.ahead -= slot[0].count
            self._drop_page(slot[0])
        slot[0] = &FULL
        self.ahead += PAGE_OFFSETS
        if self.records_changes:
            self._note_page(page)
        return 0

    cdef FinishedSet copy(self):
        """A set with the same members that records no changes."""
        cdef FinishedSet twin = FinishedSet(self.floor, records_changes=False)
        cdef Py_ssize_t i
        cdef Page** slot
        cdef Page* page
        for i in range(self.page_count):
            page = self.pages[self.first + i]
            if page == NULL:
                continue
            slot = twin._slot(self.first_page + i)
            if page == &FULL:
                slot[0] = page
                continue
            slot[0] = twin._new_page()
            memcpy(slot[0], page, sizeof(Page))
            memset(slot[0].changed, 0, sizeof(page.changed))
        twin.ahead = self.ahead
        return twin

    cdef bint has_changes(self) noexcept:
        return self.changed_count > 0 or self.floor != self.written_floor

    cdef int write_changes(self, StateWriter writer, int queue_id) except -1:
        """Write the pages that changed since the last call; the caller writes the floor."""
        cdef Py_ssize_t i
        cdef int64_t number, index
        cdef Page* page
        for i in range(self.changed_count):
            number = self.changed_pages[i]
            index = number - self.first_page
            if index < 0 or index >= self.page_count or (number + 1) << PAGE_SHIFT <= self.floor:
                continue        # the floor has passed it
            page = self.pages[self.first + index]
            if page == &FULL:
                writer.put_u8(SECTION_FULL_PAGE)
                writer.put_u16(queue_id)
                writer.put_i64(number)
            elif page != NULL:
                _write_page(writer, queue_id, number, page, page.changed)
                memset(page.changed, 0, sizeof(page.changed))
        self.changed_count = 0
        self.written_floor = self.floor
        return 0

    cdef int write_all(self, StateWriter writer, int queue_id) except -1:
        """Write every page; what has changed is still told by the next write_changes()."""
        cdef Py_ssize_t i, word
        cdef Page* page
        cdef uint64_t used[8]
        if self.ahead == 0:
            return 0
        for i in range(self.page_count):
            page = self.pages[self.first + i]
            if page == NULL:
                continue
            if page == &FULL:
                writer.put_u8(SECTION_FULL_PAGE)
                writer.put_u16(queue_id)
                writer.put_i64(self.first_page + i)
                continue
            memset(used, 0, sizeof(used))
            for word in range(PAGE_WORDS):
                if page.words[word]:
                    used[word >> 6] |= (<uint64_t>1) << (word & 63)
            _write_page(writer, queue_id, self.first_page + i, page, used)
        return 0

    cdef int trim(self) except -1:
        """Free what an idle set does not need."""
        cdef Py_ssize_t i
        if self.ahead == 0 and self.page_count:
            for i in range(self.first, self.first + self.page_count):
                self._drop_page(self.pages[i])
            self.page_count = 0
            self.first = 0
            self.first_end = INT64_MAX
            self.changed_count = 0
        elif self.ahead or self.spare == NULL:
            return 0
        free(self.spare)
        self.spare = NULL
        free(self.pages)
        self.pages = NULL
        self.page_capacity = 0
        free(self.changed_pages)
        self.changed_pages = NULL
        self.changed_count = 0
        self.changed_capacity = 0
        return 0


cdef int _write_page(StateWriter writer, int queue_id, int64_t number, Page* page, uint64_t* chosen) except -1:
    cdef Py_ssize_t word, count = 0
    cdef uint8_t* at
    cdef uint16_t short_word
    for word in range(8):
        count += __builtin_popcountll(chosen[word])
    if count == 0:
        return 0
    writer.put_u8(SECTION_WORDS)
    writer.put_u16(queue_id)
    writer.put_i64(number)
    writer.put_u16(<uint16_t>count)
    at = writer.reserve(count * 10)
    for word in range(PAGE_WORDS):
        if chosen[word >> 6] >> (word & 63) & 1:
            short_word = <uint16_t>word
            memcpy(at, &short_word, 2)
            memcpy(at + 2, &page.words[word], 8)
            at += 10
    return 0
