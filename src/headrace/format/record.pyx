"""Encode, check and read records of the commit log.

Byte for byte RocketMQ's record V1, so that its tools read our files and ours read its; a record of ours ends with the
property ``__CRC32#`` as RocketMQ 5 writes it: CRC-32 of everything before the property, masked to 31 bits, ten decimal
digits, *least significant first*. The property always lies in the last 20 bytes, so checking it parses nothing.

Two properties of our own, plain RocketMQ properties to any other reader:
``TIMER_DELIVER_MS`` (a name RocketMQ 5 has for the same thing): not to be delivered by channels before that time;
``__BATCH#``: on the first record of a command that published several messages: how many. Recovery drops the records
of a command whose end never reached the disk, so a batch is there whole or not at all.
"""

import ipaddress

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset
from headrace.batch cimport PublishEntry, RecordView
from headrace.format.checksum cimport crc32

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t MAGIC_BLANK = 0xCBD43194
BLANK_MAGIC = MAGIC_BLANK
UNWRITTEN = RECORD_UNWRITTEN
BLANK = RECORD_BLANK
BAD_OFFSET = RECORD_BAD_OFFSET
SYS_PREPARED = SYS_FLAG_PREPARED
SYS_COMMITTED = SYS_FLAG_COMMIT
SYS_TRANSACTION = SYS_FLAG_TRANSACTION
SYS_BORN_V6 = SYS_FLAG_BORN_V6
SYS_STORE_V6 = SYS_FLAG_STORE_V6

cdef const char* CHECKSUM_NAME = b"__CRC32#\x01"
cdef const char* DELIVER_AT_NAME = b"TIMER_DELIVER_MS\x01"
cdef const char* BATCH_NAME = b"__BATCH#\x01"
cdef enum:
    CHECKSUM_NAME_BYTES = 9
    DELIVER_AT_NAME_BYTES = 17
    BATCH_NAME_BYTES = 9
    MAX_ZEROS = 64              # next to each other in properties without a checksum


cdef uint8_t[100][2] PAIRS                 # the two digits of a number, the less significant one first


cdef void _fill_pairs() noexcept:
    cdef int number
    for number in range(100):
        PAIRS[number][0] = <uint8_t>(48 + number % 10)
        PAIRS[number][1] = <uint8_t>(48 + number // 10)


_fill_pairs()


cdef uint8_t[112] NO_HEAD                  # zeros


cdef void fill_template(RecordTemplate* template, uint32_t queue_id, const uint8_t* topic, uint32_t topic_bytes,
                        uint64_t born_host, const uint8_t* born_host_v6, uint64_t store_host,
                        const uint8_t* store_host_v6, int64_t born_ms, int64_t store_ms) noexcept nogil:
    """Prepare the fields that every record of one destination and time shares.

    ``born_host_v6`` (20 bytes: address, i32 port) wins over ``born_host`` (IPv4 << 32 | port) unless NULL; so with the
    store's.
    """
    cdef uint8_t* head = template.head
    memcpy(head, NO_HEAD, sizeof(NO_HEAD))  # memset is compiled to an instruction that takes longer to begin
    store_u32(head + 4, MAGIC_V1)
    store_u32(head + 12, queue_id)
    store_i64(head + 40, born_ms)
    cdef uint32_t at
    cdef uint32_t sys_flag = 0
    if born_host_v6 != NULL:
        sys_flag = SYS_FLAG_BORN_V6
        memcpy(head + 48, born_host_v6, 20)
        at = 68
    else:
        store_u64(head + 48, born_host)
        at = 56
    store_i64(head + at, store_ms)
    at += 8
    if store_host_v6 != NULL:
        sys_flag |= SYS_FLAG_STORE_V6
        memcpy(head + at, store_host_v6, 20)
        at += 20
    else:
        store_u64(head + at, store_host)
        at += 8
    store_u32(head + 36, sys_flag)
    # reconsumeTimes and preparedTransactionOffset stay zero
    template.head_bytes = at + 12
    template.is_born_v6 = born_host_v6 != NULL
    template.topic = topic
    template.topic_bytes = topic_bytes
    template.born_ms = born_ms


cdef inline uint32_t _count_digits(int64_t value) noexcept nogil:
    cdef uint32_t digits = 1
    while value >= 10:
        value //= 10
        digits += 1
    return digits


cdef inline uint8_t* _put_number(uint8_t* at, const char* name, uint32_t name_bytes, int64_t value) noexcept nogil:
    """Write one ``name 0x01 digits 0x02`` property."""
    cdef uint32_t digits = _count_digits(value)
    cdef uint32_t i
    memcpy(at, name, name_bytes)
    at += name_bytes
    for i in range(digits):
        at[digits - 1 - i] = <uint8_t>(48 + value % 10)
        value //= 10
    at[digits] = 2
    return at + digits + 1


cdef inline bint _says_own(const PublishEntry* entry) noexcept nogil:
    """Whether the entry's head is not the template's: one test for the many that say nothing."""
    return (<uint64_t>entry.born_ms | <uint64_t>entry.prepared_offset | entry.born_host | <uint64_t>entry.born_v6
            | entry.flag | entry.sys_flag | <uint32_t>entry.reconsume_times) != 0


cdef inline bint _is_born_v6(const RecordTemplate* template, const PublishEntry* entry) noexcept nogil:
    return entry.born_v6 != NULL or (entry.born_host == 0 and template.is_born_v6)


cdef uint32_t _put_own_head(uint8_t* at, const RecordTemplate* template, const PublishEntry* entry) noexcept nogil:
    """Write the fixed fields of an entry that says something of its own; return their size."""
    cdef bint is_v6 = _is_born_v6(template, entry)
    cdef uint32_t born_bytes = 20 if is_v6 else 8
    cdef uint32_t template_born_bytes = 20 if template.is_born_v6 else 8
    cdef uint32_t rest_bytes = template.head_bytes - 48 - template_born_bytes
    cdef uint32_t sys_flag = entry.sys_flag & ~<uint32_t>(SYS_FLAG_BORN_V6 | SYS_FLAG_STORE_V6)
    cdef uint8_t* end = at + 48 + born_bytes + rest_bytes
    memcpy(at, template.head, 48)
    store_u32(at + 16, entry.flag)
    sys_flag |= load_u32(template.head + 36) & SYS_FLAG_STORE_V6
    store_u32(at + 36, sys_flag | (SYS_FLAG_BORN_V6 if is_v6 else 0))
    if entry.born_ms:
        store_i64(at + 40, entry.born_ms)
    if entry.born_v6 != NULL:
        memcpy(at + 48, entry.born_v6, 20)
    elif entry.born_host:
        store_u64(at + 48, entry.born_host)
    else:
        memcpy(at + 48, template.head + 48, born_bytes)
    memcpy(at + 48 + born_bytes, template.head + 48 + template_born_bytes, rest_bytes)
    store_u32(end - 12, <uint32_t>entry.reconsume_times)
    store_i64(end - 8, entry.prepared_offset)
    return 48 + born_bytes + rest_bytes


cdef uint32_t measure_record(const RecordTemplate* template, const PublishEntry* entry,
                             uint32_t* properties_bytes) noexcept nogil:
    """Return the size of the record that ``entry`` becomes, and of its properties with all that we add."""
    cdef uint32_t properties = entry.properties_bytes
    cdef uint32_t head_bytes = template.head_bytes
    if properties and entry.properties[properties - 1] != 2:
        properties += 1
    if entry.deliver_at_ms > 0:
        properties += DELIVER_AT_NAME_BYTES + _count_digits(entry.deliver_at_ms) + 1
    if entry.command_entries > 1:
        properties += BATCH_NAME_BYTES + _count_digits(entry.command_entries) + 1
    properties += CHECKSUM_BYTES
    properties_bytes[0] = properties
    if entry.born_host != 0 or entry.born_v6 != NULL:
        head_bytes += (12 if entry.born_v6 != NULL else 0) - (12 if template.is_born_v6 else 0)
    return head_bytes + 7 + entry.body_bytes + template.topic_bytes + properties


cdef void encode_record(uint8_t* at, const RecordTemplate* template, const PublishEntry* entry, uint32_t record_bytes,
                        uint32_t properties_bytes, int64_t queue_offset, int64_t physical_offset) noexcept nogil:
    """Write one whole record of ``record_bytes`` (from ``measure_record``) at ``at``."""
    cdef uint32_t head_bytes = template.head_bytes
    cdef uint32_t body_bytes = entry.body_bytes
    cdef uint32_t topic_bytes = template.topic_bytes
    cdef uint8_t* p
    if _says_own(entry):
        head_bytes = _put_own_head(at, template, entry)
    else:
        memcpy(at, template.head, head_bytes)
    store_u32(at, record_bytes)
    store_u32(at + 8, crc32(0, <const uint8_t*>entry.body, body_bytes) & 0x7FFFFFFF)
    store_i64(at + QUEUE_OFFSET_AT, queue_offset)
    store_i64(at + PHYSICAL_OFFSET_AT, physical_offset)
    p = at + head_bytes
    store_u32(p, body_bytes)
    memcpy(p + 4, entry.body, body_bytes)
    p += 4 + body_bytes
    p[0] = <uint8_t>topic_bytes
    memcpy(p + 1, template.topic, topic_bytes)
    p += 1 + topic_bytes
    store_u16(p, <uint16_t>properties_bytes)
    p += 2
    if entry.properties_bytes:
        memcpy(p, entry.properties, entry.properties_bytes)
        p += entry.properties_bytes
        if (p - 1)[0] != 2:
            p[0] = 2
            p += 1
    if entry.deliver_at_ms > 0:
        p = _put_number(p, DELIVER_AT_NAME, DELIVER_AT_NAME_BYTES, entry.deliver_at_ms)
    if entry.command_entries > 1:
        p = _put_number(p, BATCH_NAME, BATCH_NAME_BYTES, entry.command_entries)
    _put_checksum(at, p)


cdef inline void _put_checksum(const uint8_t* at, uint8_t* p) noexcept nogil:
    """Write the checksum of the record that begins at ``at`` as its last property."""
    cdef uint32_t crc = crc32(0, at, p - at) & 0x7FFFFFFF
    cdef uint32_t low, middle
    memcpy(p, CHECKSUM_NAME, CHECKSUM_NAME_BYTES)
    p += CHECKSUM_NAME_BYTES
    low = crc % 10000               # in parts that do not wait for each other
    middle = crc // 10000 % 10000
    memcpy(p, &PAIRS[low % 100], 2)
    memcpy(p + 2, &PAIRS[low // 100], 2)
    memcpy(p + 4, &PAIRS[middle % 100], 2)
    memcpy(p + 6, &PAIRS[middle // 100], 2)
    memcpy(p + 8, &PAIRS[crc // 100000000], 2)
    p[10] = 2


cdef void encode_blank(uint8_t* at, uint32_t blank_bytes) noexcept nogil:
    """Mark the last ``blank_bytes`` of a segment as unused; at least 8 bytes are there by the room rule."""
    store_u32(at, blank_bytes)
    store_u32(at + 4, MAGIC_BLANK)


cdef inline uint32_t _stored_crc(const uint8_t* digits) noexcept nogil:
    cdef uint32_t value = 0
    cdef int i
    for i in range(9, -1, -1):
        if digits[i] < 48 or digits[i] > 57:
            return 0xFFFFFFFF
        value = value * 10 + (digits[i] - 48)
    return value


cdef bint has_checksum(const RecordView* view) noexcept nogil:
    return view.properties_bytes >= CHECKSUM_BYTES and memcmp(
        view.properties + view.properties_bytes - CHECKSUM_BYTES, CHECKSUM_NAME, CHECKSUM_NAME_BYTES
    ) == 0


cdef bint _are_properties(const uint8_t* at, uint32_t size) noexcept nogil:
    """Whether properties without a checksum can have been written so (RocketMQ does), and are not a damaged one.

    Names and values alternate and are text; the last name is not nearly that of the checksum. A value may hold zeros,
    but not as many as a write leaves that stopped halfway: those go on to the end of a sector or of the record.
    """
    cdef uint32_t i, alike, zeros = 0
    cdef uint8_t due = 1
    if size == 0:
        return True
    for i in range(size):
        if at[i] == 0:
            zeros += 1
            if zeros == MAX_ZEROS:
                return False
            continue
        zeros = 0
        if at[i] == due:
            due ^= 3
        elif at[i] > 0xF4:
            return False    # no UTF-8 text
    if zeros:
        return False
    # RocketMQ leaves the last 2 away.
    if due == 1 and at[size - 1] != 2:
        return False
    if size < CHECKSUM_BYTES:
        return True
    alike = at[size - 1] == 2
    for i in range(<uint32_t>CHECKSUM_NAME_BYTES):
        alike += at[size - CHECKSUM_BYTES + i] == <uint8_t>CHECKSUM_NAME[i]
    return alike < 6        # of 10: four are what names that begin with two underscores have


cdef bint _can_be_listed(const uint8_t* at, const uint8_t* topic, uint32_t topic_bytes) noexcept nogil:
    """Whether a queue can have the record, going by what the body's checksum does not cover.

    Topics of RocketMQ are ASCII. Each message of a queue took its room in the log, so queue offsets stay behind physical
    ones; only records that hold several messages (RocketMQ 5) count faster. Without this one flipped bit would make a
    recovery write fillers until the disk is full, or a folder anywhere.
    """
    cdef int64_t queue_offset = load_i64(at + QUEUE_OFFSET_AT)
    cdef uint32_t i
    if load_u32(at + QUEUE_ID_AT) >= MAX_QUEUES or queue_offset < 0:
        return False
    if queue_offset > load_i64(at + PHYSICAL_OFFSET_AT) // FIXED_BYTES and not load_u32(at + 36) & SYS_FLAG_INNER_BATCH:
        return False
    for i in range(topic_bytes):
        if topic[i] <= 0x20 or topic[i] >= 0x7F or topic[i] == 0x2F:
            return False
    return topic_bytes <= 255


cdef int64_t check_record(const uint8_t* at, int64_t room, int64_t physical_offset, bint checksums) noexcept nogil:
    """Check the record at ``at``; ``room`` bytes of the segment follow.

    Args:
        physical_offset: Where the record must say it is; -1 checks no position.
        checksums: Also verify the whole-record checksum, or the body's where a record (RocketMQ 4) has only that.

    Returns:
        The record's size, or one of RECORD_UNWRITTEN, RECORD_BLANK, RECORD_BAD_...
    """
    cdef uint32_t size, magic, sys_flag, head, body_bytes, topic_bytes, properties_bytes
    cdef uint64_t need
    if room < BLANK_BYTES:
        return RECORD_UNWRITTEN
    size = load_u32(at)
    magic = load_u32(at + 4)
    if magic == MAGIC_BLANK:
        # The blank record says how much is left; another number is damage.
        return RECORD_BLANK if size == room else RECORD_BAD_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return RECORD_UNWRITTEN if magic == 0 and size == 0 else RECORD_BAD_MAGIC
    if size < FIXED_BYTES or size > room:
        return RECORD_BAD_SIZE
    if physical_offset >= 0 and load_i64(at + PHYSICAL_OFFSET_AT) != physical_offset:
        return RECORD_BAD_OFFSET
    sys_flag = load_u32(at + 36)
    head = 84
    if sys_flag & SYS_FLAG_BORN_V6:
        head += 12
    if sys_flag & SYS_FLAG_STORE_V6:
        head += 12
    need = <uint64_t>head + 4
    if need > size:
        return RECORD_BAD_LENGTHS
    body_bytes = load_u32(at + head)
    need += <uint64_t>body_bytes + (1 if magic == MAGIC_V1 else 2)
    if need > size:
        return RECORD_BAD_LENGTHS
    topic_bytes = at[need - 1] if magic == MAGIC_V1 else load_u16(at + need - 2)
    need += topic_bytes + 2
    if need > size:
        return RECORD_BAD_LENGTHS
    properties_bytes = load_u16(at + need - 2)
    need += properties_bytes
    if need != size:
        return RECORD_BAD_LENGTHS
    if not checksums:
        return size
    if properties_bytes >= CHECKSUM_BYTES and memcmp(at + size - CHECKSUM_BYTES, CHECKSUM_NAME,
                                                      CHECKSUM_NAME_BYTES) == 0:
        if _stored_crc(at + size - 11) != (crc32(0, at, size - CHECKSUM_BYTES) & 0x7FFFFFFF) or at[size - 1] != 2:
            return RECORD_BAD_CHECKSUM
    elif not _are_properties(at + size - properties_bytes, properties_bytes):
        return RECORD_BAD_CHECKSUM
    elif not _can_be_listed(at, at + size - properties_bytes - 2 - topic_bytes, topic_bytes):
        return RECORD_BAD_FIELDS
    elif load_u32(at + 8) != (crc32(0, at + head + 4, body_bytes) & 0x7FFFFFFF):
        return RECORD_BAD_CHECKSUM
    return size


cdef int read_view(const uint8_t* at, uint32_t record_bytes, RecordView* view) noexcept nogil:
    """Fill ``view`` from a record that ``check_record`` has accepted."""
    cdef uint32_t sys_flag = load_u32(at + 36)
    cdef uint32_t born = 20 if sys_flag & SYS_FLAG_BORN_V6 else 8
    cdef const uint8_t* p = at + 48 + born
    cdef uint32_t topic_bytes
    view.record = <const char*>at
    view.record_bytes = record_bytes
    view.queue_id = load_u32(at + 12)
    view.queue_offset = load_i64(at + QUEUE_OFFSET_AT)
    view.physical_offset = load_i64(at + PHYSICAL_OFFSET_AT)
    view.store_timestamp_ms = load_i64(p)
    p += 8 + (20 if sys_flag & SYS_FLAG_STORE_V6 else 8) + 12
    view.body_bytes = load_u32(p)
    view.body = <const char*>p + 4
    p += 4 + view.body_bytes
    if load_u32(at + 4) == MAGIC_V1:
        topic_bytes = p[0]
        p += 1 + topic_bytes
    else:
        topic_bytes = load_u16(p)
        p += 2 + topic_bytes
    view.properties_bytes = load_u16(p)
    view.properties = <const char*>p + 2
    return 0


cdef bint topic_of(const RecordView* view, const uint8_t** topic, uint32_t* topic_bytes) noexcept nogil:
    """Point at the record's topic, which lies between body and properties."""
    cdef const uint8_t* after_body = <const uint8_t*>view.body + view.body_bytes
    cdef uint32_t length_bytes = 1 if load_u32(<const uint8_t*>view.record + 4) == MAGIC_V1 else 2
    topic_bytes[0] = after_body[0] if length_bytes == 1 else load_u16(after_body)
    topic[0] = after_body + length_bytes
    return topic_bytes[0] > 0


cdef bint is_dispatched(const uint8_t* at) noexcept nogil:
    """Whether the record has an entry in a consume queue: prepared and rolled-back ones have none."""
    return has_queue_entry(load_u32(at + 36))


cdef const uint8_t* find_property(const RecordView* view, const char* name, uint32_t name_bytes,
                                  uint32_t* value_bytes) noexcept nogil:
    """Return the value of a property, or NULL; of a name that is there twice the last. ``name`` includes its 0x01."""
    cdef const uint8_t* p = <const uint8_t*>view.properties
    cdef const uint8_t* end = p + view.properties_bytes
    cdef const uint8_t* found = NULL
    cdef const uint8_t* stop
    while p + name_bytes < end:
        stop = <const uint8_t*>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p > name_bytes and memcmp(p, name, name_bytes) == 0:
            found = p + name_bytes
            value_bytes[0] = <uint32_t>(stop - found)
        p = stop + 1
    return found


cdef int64_t _property_number(const RecordView* view, const char* name, uint32_t name_bytes) noexcept nogil:
    cdef uint32_t digits = 0
    cdef const uint8_t* text = find_property(view, name, name_bytes, &digits)
    cdef int64_t value = 0
    cdef uint32_t i
    if text == NULL or digits > 18:
        return 0
    for i in range(digits):
        if text[i] < 48 or text[i] > 57:
            return 0
        value = value * 10 + (text[i] - 48)
    return value


cdef int64_t record_deliver_at(const RecordView* view) noexcept nogil:
    """Return when a channel may deliver the record (ms since 1970), 0 for at once."""
    if view.properties_bytes <= CHECKSUM_BYTES + DELIVER_AT_NAME_BYTES:
        return 0
    return _property_number(view, DELIVER_AT_NAME, DELIVER_AT_NAME_BYTES)


cdef int64_t record_batch_entries(const RecordView* view) noexcept nogil:
    """Return how many records the command had that begins here, 0 where the record begins none."""
    if view.properties_bytes <= CHECKSUM_BYTES + BATCH_NAME_BYTES:
        return 0
    return _property_number(view, BATCH_NAME, BATCH_NAME_BYTES)


cdef int64_t hash_tag(const uint8_t* text, uint32_t size) noexcept nogil:
    """Java's String.hashCode of UTF-8 ``text``: h = 31 h + c over UTF-16 code units, sign-extended to 64 bits.

    Bytes that are not UTF-8 count as U+FFFD each; Java would never have produced them.
    """
    cdef uint32_t h = 0, c, high
    cdef uint32_t i = 0, more, k
    while i < size:
        c = text[i]
        if c < 0x80:
            more = 0
        elif c >= 0xC2 and c < 0xE0:
            more = 1
            c &= 0x1F
        elif c >= 0xE0 and c < 0xF0:
            more = 2
            c &= 0x0F
        elif c >= 0xF0 and c < 0xF5:
            more = 3
            c &= 0x07
        else:
            more = 0
            c = 0xFFFD
        if i + more >= size:
            more = 0
            c = 0xFFFD
        for k in range(more):
            if text[i + 1 + k] & 0xC0 != 0x80:
                more = 0
                c = 0xFFFD
                break
            c = (c << 6) | (text[i + 1 + k] & 0x3F)
        i += 1 + more
        if c >= 0x10000:
            high = 0xD800 + ((c - 0x10000) >> 10)
            h = h * 31 + high
            c = 0xDC00 + ((c - 0x10000) & 0x3FF)
        h = h * 31 + c
    return <int64_t><int32_t>h


cdef int64_t record_tag_hash(const RecordView* view) noexcept nogil:
    """Return the consume-queue tag hash of the record: of its TAGS property, 0 without one."""
    cdef uint32_t size = 0
    cdef const uint8_t* text = find_property(view, b"TAGS\x01", 5, &size)
    return hash_tag(text, size) if text != NULL else 0


cdef int64_t find_record(const uint8_t* base, int64_t start, int64_t end, int64_t size,
                         int64_t first_offset) noexcept nogil:
    """Return the first position in [start, end) where a whole, right record begins, -1 if there is none.

    Records are not aligned, so every byte is a candidate; the magic, the record's own physical offset and its
    checksum together make a false hit impossible in practice.

    Args:
        size: Bytes from ``base`` to the end of the segment: a record may reach beyond ``end``.
        first_offset: Physical offset of ``base``.
    """
    cdef const uint8_t* p = base + start + 4
    cdef const uint8_t* stop = base + end
    cdef const uint8_t* hit
    cdef int64_t position
    cdef int64_t found
    while p + 4 <= stop:
        # 0xA3 and 0x20 are shared by both record magics; the first byte is what memchr can look for fastest.
        hit = <const uint8_t*>memchr(p, 0xDA, stop - p - 3)
        if hit == NULL:
            return -1
        p = hit + 1
        if hit[1] != 0xA3 or hit[2] != 0x20:
            continue
        position = hit - base - 4
        found = check_record(base + position, size - position, first_offset + position, True)
        if found > 0:
            return position
    return -1


def encode(bytes body not None, bytes topic not None, *, bytes properties=b"", uint32_t queue_id=0,
           int64_t queue_offset=0, int64_t physical_offset=0, uint64_t born_host=0, bytes born_host_v6=None,
           uint64_t store_host=0, int64_t born_ms=0, int64_t store_ms=0, int64_t deliver_at_ms=0,
           uint32_t command_entries=1, uint32_t flag=0, uint32_t sys_flag=0, int32_t reconsume_times=0,
           int64_t prepared_offset=0):
    cdef PublishEntry entry
    cdef RecordTemplate template
    cdef const uint8_t* born_v6 = NULL
    cdef uint32_t properties_bytes = 0
    cdef uint32_t size
    if born_host_v6 is not None:
        born_v6 = born_host_v6
    memset(&entry, 0, sizeof(entry))
    entry.body = body
    entry.body_bytes = <uint32_t>len(body)
    entry.properties = properties
    entry.properties_bytes = <uint32_t>len(properties)
    entry.deliver_at_ms = deliver_at_ms
    entry.command_entries = command_entries
    entry.flag = flag
    entry.sys_flag = sys_flag
    entry.reconsume_times = reconsume_times
    entry.prepared_offset = prepared_offset
    fill_template(&template, queue_id, topic, <uint32_t>len(topic), born_host, born_v6, store_host, NULL,
                  born_ms, store_ms)
    size = measure_record(&template, &entry, &properties_bytes)
    cdef bytearray out = bytearray(size)
    encode_record(out, &template, &entry, size, properties_bytes, queue_offset, physical_offset)
    return bytes(out)


def with_place(bytes raw not None, str topic not None, uint32_t queue_id):
    cdef bytes name = topic.encode("utf-8", "surrogateescape")
    cdef const uint8_t* at = raw
    cdef const uint8_t* old = NULL
    cdef uint32_t old_bytes = 0
    cdef RecordView view
    read_view(at, <uint32_t>len(raw), &view)
    topic_of(&view, &old, &old_bytes)
    cdef Py_ssize_t topic_at = old - at
    cdef int length_bytes = 1 if load_u32(at + 4) == MAGIC_V1 else 2
    cdef bytearray placed = bytearray(raw[:topic_at - length_bytes])
    placed += len(name).to_bytes(length_bytes, "big") + name + raw[topic_at + old_bytes:]
    cdef uint8_t* start = placed
    cdef uint8_t* last = start + len(placed) - CHECKSUM_BYTES
    store_u32(start, <uint32_t>len(placed))
    store_u32(start + QUEUE_ID_AT, queue_id)
    if memcmp(last, CHECKSUM_NAME, CHECKSUM_NAME_BYTES) == 0:
        _put_checksum(start, last)
    return bytes(placed)


def check(const uint8_t[::1] buffer not None, int64_t position=0, int64_t physical_offset=-1, bint checksums=True):
    if not 0 <= position <= buffer.shape[0]:
        raise IndexError(position)
    if buffer.shape[0] - position < BLANK_BYTES:
        return RECORD_UNWRITTEN
    return check_record(&buffer[position], buffer.shape[0] - position, physical_offset, checksums)


def find(const uint8_t[::1] buffer not None, int64_t start=0, int64_t first_offset=0):
    if buffer.shape[0] == 0:
        return -1
    return find_record(&buffer[0], start, buffer.shape[0], buffer.shape[0], first_offset)


def tag_hash(str tag not None):
    cdef bytes text = tag.encode("utf-8", "surrogatepass")
    return hash_tag(text, <uint32_t>len(text))


def decode(const uint8_t[::1] buffer not None, int64_t position=0):
    cdef RecordView view
    cdef int64_t size = check(buffer, position, -1, False)
    cdef const uint8_t* topic = NULL
    cdef uint32_t topic_bytes = 0
    if size <= 0:
        raise ValueError(f"no record at position {position}: {describe(size)}")
    read_view(&buffer[position], <uint32_t>size, &view)
    topic_of(&view, &topic, &topic_bytes)
    cdef const uint8_t* at = &buffer[position]
    cdef uint32_t born_bytes = 20 if load_u32(at + 36) & SYS_FLAG_BORN_V6 else 8
    cdef uint32_t store_bytes = 20 if load_u32(at + 36) & SYS_FLAG_STORE_V6 else 8
    cdef const uint8_t* behind = at + 48 + born_bytes + 8
    return {
        "record_bytes": size,
        "physical_offset": view.physical_offset,
        "topic": (<const char*>topic)[:topic_bytes].decode("utf-8", "replace"),
        "queue_id": view.queue_id,
        "queue_offset": view.queue_offset,
        "sys_flag": load_u32(at + 36),
        "flag": load_i32(at + 16),
        "born_timestamp_ms": load_i64(at + 40),
        "store_timestamp_ms": view.store_timestamp_ms,
        "born_host": describe_host(at[48:48 + born_bytes]),
        "store_host": describe_host(behind[:store_bytes]),
        "reconsume_times": load_i32(behind + store_bytes),
        "prepared_offset": load_i64(behind + store_bytes + 4),
        "body_crc": load_u32(at + 8),
        "body": view.body[:view.body_bytes],
        "properties": view.properties[:view.properties_bytes],
    }


def describe_host(bytes host not None):
    if len(host) not in (8, 20):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    address = ipaddress.ip_address(host[:len(host) - 4])
    port = load_i32(<const uint8_t*>host + len(host) - 4)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def message_id(bytes store_host not None, int64_t physical_offset):
    if len(store_host) not in (8, 20):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(store_host)}")
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def properties_of(bytes properties not None):
    cdef dict found = {}
    for piece in properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            found[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
    return found


def encode_properties(properties):
    cdef list pieces = []
    for name, value in properties.items():
        if not name or not value:
            continue    # RocketMQ writes none of those
        # A value may hold 0x01: readers split at the first one, and clients do send it.
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise ValueError(f"property {name!r} holds a separator")
        pieces.append(_encode_text(name) + b"\x01" + _encode_text(value) + b"\x02")
    return b"".join(pieces)


def _encode_text(str text):
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Half a pair of UTF-16, as JSON can spell it: Java writes "?" too.
        return text.encode("utf-8", "replace")


_REASONS = {
    RECORD_UNWRITTEN: "never written",
    RECORD_BLANK: "blank to the end of the segment",
    RECORD_BAD_MAGIC: "bad magic",
    RECORD_BAD_SIZE: "bad size",
    RECORD_BAD_OFFSET: "physical offset of another place",
    RECORD_BAD_LENGTHS: "field lengths that do not add up",
    RECORD_BAD_CHECKSUM: "bad checksum",
    RECORD_BAD_FIELDS: "topic, queue id or queue offset that cannot be",
}


def describe(int64_t found):
    return _REASONS.get(found, "whole")
