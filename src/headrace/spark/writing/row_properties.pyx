# cython: nonecheck=False
# Code without the GIL reads attributes of self, which Cython would check for None there, and cannot.
"""The properties of the message that a row becomes.

Each is ``name 1 value 2``, in this order: TAGS, KEYS, __SHARDINGKEY, DELAY or TIMER_DELIVER_MS, further columns, the map,
UNIQ_KEY. A property without a value is none, for every reader, so it is left out.

Ref: remoting.md 2.5; docs/spark/sink.md.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from headrace.spark.writing.arrow_columns cimport LIST, Column, is_null, integer_at, milliseconds_at, text_at
from headrace.spark.writing.row_columns cimport (
    BAD_DELAY, BAD_KEYS, BAD_SEPARATOR, DELAY_LEVEL, DELIVER_AT, DONE, EARLY_TIME, KEYS, LONG_PROPERTIES, NULL_KEY,
    PROPERTIES, SHARDING_KEY, TAGS, TWO_DELAYS, UNIQUE_KEY, Name,
)

cdef enum:
    KEY_DIGITS = 12                     # of a made key: the number of the row


cdef inline bint _is_named(const Text* name, const char* text, int64_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0


cdef bint _is_brokers(const Text* name) noexcept nogil:
    """Whether a property of a map is the broker's own, or an order that has a column: it is not copied to a message."""
    cdef int64_t size = name.size
    if size > 6 and memcmp(name.at, b"TIMER_", 6) == 0:
        return True
    if size == 4:
        return memcmp(name.at, b"WAIT", 4) == 0
    if size == 5:
        return memcmp(name.at, b"DELAY", 5) == 0
    if size == 6:
        return memcmp(name.at, b"PGROUP", 6) == 0
    if size == 7:
        return memcmp(name.at, b"CLUSTER", 7) == 0
    if size == 8:
        return (memcmp(name.at, b"__BATCH#", 8) == 0 or memcmp(name.at, b"__CRC32#", 8) == 0
                or memcmp(name.at, b"TRAN_MSG", 8) == 0 or memcmp(name.at, b"REAL_QID", 8) == 0)
    return size == 10 and memcmp(name.at, b"REAL_TOPIC", 10) == 0


cdef class RowProperties:
    """Made of the columns, what made keys begin with (None: none are made), and whether a row without a key is refused."""

    def __cinit__(self):
        self.at = <uint8_t*>malloc(MAX_PROPERTIES_BYTES + 64)
        if self.at == NULL:
            raise MemoryError("cannot make an encoder")

    def __init__(self, RowColumns columns not None, bytes key_prefix, bint key_required):
        if key_prefix is not None:
            if len(key_prefix) > 128:
                raise ValueError("the prefix of keys is longer than 128 bytes")
            self.prefix = PyBytes_AS_STRING(key_prefix)
            self.prefix_bytes = len(key_prefix)
        self.columns = columns
        self.key_prefix = key_prefix
        self.key_required = key_required

    def __dealloc__(self):
        free(self.at)

    cdef int write(self, int64_t row, int64_t number) noexcept nogil:
        cdef Text tags = text_at(&self.columns.of_role[TAGS], row)
        cdef Text sharding_key = text_at(&self.columns.of_role[SHARDING_KEY], row)
        cdef Text key = text_at(&self.columns.of_role[UNIQUE_KEY], row)
        cdef bint has_keys = not is_null(&self.columns.of_role[KEYS], row)
        cdef bint has_key = key.at != NULL and key.size > 0
        cdef Py_ssize_t index
        cdef Name name
        cdef Text value
        cdef int status
        self.used = 0
        self.left_out = 0
        self.is_delayed = False
        status = self._put(b"TAGS", 4, &tags, TAGS)
        if status == DONE and has_keys:
            status = self._put_keys(row)
        if status == DONE:
            status = self._put(b"__SHARDINGKEY", 13, &sharding_key, SHARDING_KEY)
        if status == DONE:
            status = self._put_delay(row)
        if status != DONE:
            return status
        for index in range(self.columns.extra_count):
            name = self.columns.extra_names[index]
            value = text_at(&self.columns.extras[index], row)
            status = self._put(<const char*>name.at, name.size, &value, -1)
            if status != DONE:
                self.columns.fault_extra = index
                return status
        if not is_null(&self.columns.of_role[PROPERTIES], row):
            status = self._put_map(row, tags.at != NULL, has_keys, sharding_key.at != NULL, &has_key)
            if status != DONE:
                return status
        if key.at != NULL and key.size > 0:
            return self._put(b"UNIQ_KEY", 8, &key, UNIQUE_KEY)
        if self.key_required:
            return self.columns.fail(NULL_KEY, UNIQUE_KEY, 0)
        if not has_key and self.prefix != NULL:
            return self._put_made_key(row, number)
        return DONE

    cdef int _put(self, const char* name, int64_t name_bytes, const Text* value, int role) noexcept nogil:
        """Add one property, if it has a value."""
        cdef uint8_t* at = self.at + self.used
        cdef int64_t size = name_bytes + value.size + 2
        if value.at == NULL or value.size == 0:
            return DONE
        if self.used + size > MAX_PROPERTIES_BYTES:
            return self.columns.fail(LONG_PROPERTIES, role, self.used + size)
        if memchr(value.at, 1, value.size) != NULL or memchr(value.at, 2, value.size) != NULL:
            return self.columns.fail(BAD_SEPARATOR, role, 0)
        memcpy(at, name, name_bytes)
        at[name_bytes] = 1
        memcpy(at + name_bytes + 1, value.at, value.size)
        at[size - 1] = 2
        self.used += size
        return DONE

    cdef int _put_keys(self, int64_t row) noexcept nogil:
        """Add KEYS: a text as it is, a list joined by spaces."""
        cdef const Column* column = &self.columns.of_role[KEYS]
        cdef Text value
        cdef int64_t at, start, mark = self.used
        cdef int status
        cdef bint is_first = True
        if column.kind != LIST:
            value = text_at(column, row)
            return self._put(b"KEYS", 4, &value, KEYS)
        start = column.offset + row
        for at in range((<const int32_t*>column.offsets)[start], (<const int32_t*>column.offsets)[start + 1]):
            value = text_at(&self.columns.items, at)
            if value.at == NULL or value.size == 0:
                continue
            if memchr(value.at, c" ", value.size) != NULL:
                return self.columns.fail(BAD_KEYS, KEYS, 0)
            if is_first:
                status = self._put(b"KEYS", 4, &value, KEYS)
            else:
                # As a property without a name: what would part name and value becomes the space between two keys.
                mark = self.used - 1
                self.used = mark
                status = self._put(b"", 0, &value, KEYS)
                if status == DONE:
                    self.at[mark] = c" "
            if status != DONE:
                return status
            is_first = False
        return DONE

    cdef int _put_number(self, const char* name, int64_t name_bytes, int64_t number, int role) noexcept nogil:
        cdef uint8_t[20] digits
        cdef int first = 20
        cdef Text value
        while True:
            first -= 1
            digits[first] = <uint8_t>(48 + number % 10)
            number /= 10
            if number == 0:
                break
        value.at = digits + first
        value.size = 20 - first
        return self._put(name, name_bytes, &value, role)

    cdef int _put_delay(self, int64_t row) noexcept nogil:
        """Add the property that makes a message wait."""
        cdef int64_t level = 0, deliver_ms
        if not is_null(&self.columns.of_role[DELAY_LEVEL], row):
            level = integer_at(&self.columns.of_role[DELAY_LEVEL], row)
            if not 0 <= level <= 999:
                return self.columns.fail(BAD_DELAY, DELAY_LEVEL, level)
        if not is_null(&self.columns.of_role[DELIVER_AT], row):
            deliver_ms = milliseconds_at(&self.columns.of_role[DELIVER_AT], row)
            if deliver_ms <= 0:
                return self.columns.fail(EARLY_TIME, DELIVER_AT, deliver_ms)
            if level:
                return self.columns.fail(TWO_DELAYS, DELIVER_AT, level)
            self.is_delayed = True
            return self._put_number(b"TIMER_DELIVER_MS", 16, deliver_ms, DELIVER_AT)
        if level:
            self.is_delayed = True
            return self._put_number(b"DELAY", 5, level, DELAY_LEVEL)
        return DONE

    cdef int _put_map(self, int64_t row, bint has_tags, bint has_keys, bint has_sharding_key,
                      bint* has_key) noexcept nogil:
        """Add the properties of a map, but for what a column says and what is the broker's."""
        cdef const int32_t* offsets = <const int32_t*>self.columns.of_role[PROPERTIES].offsets
        cdef int64_t at = self.columns.of_role[PROPERTIES].offset + row
        cdef int64_t entry
        cdef Text name, value
        cdef bint given_key = has_key[0]
        cdef int status
        for entry in range(offsets[at], offsets[at + 1]):
            name = text_at(&self.columns.names, entry)
            value = text_at(&self.columns.values, entry)
            if name.at == NULL or name.size == 0:
                return self.columns.fail(BAD_SEPARATOR, PROPERTIES, 0)
            if value.at == NULL or value.size == 0:
                continue
            if _is_brokers(&name):
                self.left_out += 1
                continue
            if has_tags and _is_named(&name, b"TAGS", 4) or has_keys and _is_named(&name, b"KEYS", 4):
                continue
            if has_sharding_key and _is_named(&name, b"__SHARDINGKEY", 13) or self._is_extra(&name, row):
                continue
            if _is_named(&name, b"UNIQ_KEY", 8):
                if given_key:
                    continue
                has_key[0] = True
            if memchr(name.at, 1, name.size) != NULL or memchr(name.at, 2, name.size) != NULL:
                return self.columns.fail(BAD_SEPARATOR, PROPERTIES, 0)
            status = self._put(<const char*>name.at, name.size, &value, PROPERTIES)
            if status != DONE:
                return status
        return DONE

    cdef bint _is_extra(self, const Text* name, int64_t row) noexcept nogil:
        """Whether a further column gives this property."""
        cdef Py_ssize_t index
        for index in range(self.columns.extra_count):
            if self.columns.extra_names[index].size == name.size and not is_null(&self.columns.extras[index], row):
                if memcmp(self.columns.extra_names[index].at, name.at, name.size) == 0:
                    return True
        return False

    cdef int _put_made_key(self, int64_t row, int64_t number) noexcept nogil:
        """Add a UNIQ_KEY made of the prefix and of the number of the row, 12 hexadecimal digits."""
        cdef uint8_t[160] key
        cdef const uint8_t* digits = <const uint8_t*>b"0123456789ABCDEF"
        cdef Text value
        cdef int index, status
        memcpy(key, self.prefix, self.prefix_bytes)
        for index in range(KEY_DIGITS):
            key[self.prefix_bytes + index] = digits[(number >> (4 * (KEY_DIGITS - 1 - index))) & 15]
        value.at = key
        value.size = self.prefix_bytes + KEY_DIGITS
        status = self._put(b"UNIQ_KEY", 8, &value, UNIQUE_KEY)
        if status != DONE:
            self.columns.fault_role = self._longest(row)
        return status

    cdef int _longest(self, int64_t row) noexcept nogil:
        """Return the role of the column that takes most of a row's properties; -1: a further one, ``fault_extra``."""
        cdef int[3] texts = [TAGS, KEYS, SHARDING_KEY]
        cdef const int32_t* offsets = <const int32_t*>self.columns.of_role[PROPERTIES].offsets
        cdef int64_t at, entry, size, most = 0
        cdef int found = PROPERTIES, role
        cdef Py_ssize_t index
        if not is_null(&self.columns.of_role[PROPERTIES], row):
            at = self.columns.of_role[PROPERTIES].offset + row
            for entry in range(offsets[at], offsets[at + 1]):
                most += text_at(&self.columns.names, entry).size + text_at(&self.columns.values, entry).size
        for index in range(3):
            role = texts[index]
            if self.columns.of_role[role].kind == LIST:
                offsets = <const int32_t*>self.columns.of_role[role].offsets
                at = self.columns.of_role[role].offset + row
                size = 0
                for entry in range(offsets[at], offsets[at + 1]):
                    size += text_at(&self.columns.items, entry).size
            else:
                size = text_at(&self.columns.of_role[role], row).size
            if size > most:
                most = size
                found = role
        for index in range(self.columns.extra_count):
            size = text_at(&self.columns.extras[index], row).size
            if size > most:
                most = size
                found = -1
                self.columns.fault_extra = index
        return found
