# The commit-log record. Layout, checks and their reasons: docs/formats/commit-log.md.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from headrace.batch cimport PublishEntry, RecordView

cdef extern from *:
    """
    #include <string.h>
    /* Records are not aligned: memcpy is how C loads from any address; compilers make one instruction of it. */
    static inline uint64_t headrace_load64(const void *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline uint32_t headrace_load32(const void *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint16_t headrace_load16(const void *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline void headrace_store64(void *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static inline void headrace_store32(void *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void headrace_store16(void *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
    """
    uint64_t headrace_load64(const void* at) noexcept nogil
    uint32_t load_u32 "headrace_load32"(const void* at) noexcept nogil
    uint16_t load_u16 "headrace_load16"(const void* at) noexcept nogil
    void store_u64 "headrace_store64"(void* at, uint64_t value) noexcept nogil
    void store_u32 "headrace_store32"(void* at, uint32_t value) noexcept nogil
    void store_u16 "headrace_store16"(void* at, uint16_t value) noexcept nogil

cdef inline int32_t load_i32(const uint8_t* at) noexcept nogil:
    return <int32_t>load_u32(at)

cdef inline int64_t load_i64(const uint8_t* at) noexcept nogil:
    return <int64_t>headrace_load64(at)

cdef inline void store_i64(uint8_t* at, int64_t value) noexcept nogil:
    store_u64(at, <uint64_t>value)

cdef enum:
    FIXED_BYTES = 91            # a record with IPv4 hosts and nothing variable
    MAX_BODY_BYTES = 4194304
    MAX_PROPERTIES_BYTES = 32767
    MAX_TOPIC_BYTES = 127
    MAX_QUEUES = 65536         # of a topic
    CHECKSUM_BYTES = 20         # the __CRC32# property, always last
    BLANK_BYTES = 8             # a blank record's head
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_BORN_V6 = 0x10
    SYS_FLAG_STORE_V6 = 0x20
    SYS_FLAG_INNER_BATCH = 0x80 # RocketMQ 5: the body holds several messages, each with a queue offset
    SYS_FLAG_TRANSACTION = 0xC
    SYS_FLAG_PREPARED = 0x4
    SYS_FLAG_COMMIT = 0x8
    SYS_FLAG_ROLLBACK = 0xC

cdef enum:                      # what check_record finds
    RECORD_UNWRITTEN = 0        # zeros: nothing was ever written here
    RECORD_BLANK = -1           # the rest of the segment is unused
    RECORD_BAD_MAGIC = -2
    RECORD_BAD_SIZE = -3
    RECORD_BAD_OFFSET = -4
    RECORD_BAD_LENGTHS = -5
    RECORD_BAD_CHECKSUM = -6
    RECORD_BAD_FIELDS = -7

cdef struct RecordTemplate:     # what all records of one batch and destination share
    uint8_t head[112]           # the fixed fields up to and excluding the body length
    uint32_t head_bytes
    bint is_born_v6
    const uint8_t* topic
    uint32_t topic_bytes
    int64_t born_ms

cdef void fill_template(RecordTemplate* template, uint32_t queue_id, const uint8_t* topic, uint32_t topic_bytes,
                        uint64_t born_host, const uint8_t* born_host_v6, uint64_t store_host,
                        const uint8_t* store_host_v6, int64_t born_ms, int64_t store_ms) noexcept nogil
cdef uint32_t measure_record(const RecordTemplate* template, const PublishEntry* entry,
                             uint32_t* properties_bytes) noexcept nogil
cdef void encode_record(uint8_t* at, const RecordTemplate* template, const PublishEntry* entry, uint32_t record_bytes,
                        uint32_t properties_bytes, int64_t queue_offset, int64_t physical_offset) noexcept nogil
cdef void encode_blank(uint8_t* at, uint32_t blank_bytes) noexcept nogil
cdef int64_t check_record(const uint8_t* at, int64_t room, int64_t physical_offset, bint checksums) noexcept nogil
cdef int read_view(const uint8_t* at, uint32_t record_bytes, RecordView* view) noexcept nogil
cdef bint is_dispatched(const uint8_t* at) noexcept nogil
cdef bint has_checksum(const RecordView* view) noexcept nogil     # of the whole record: all of ours have it

cdef inline bint has_queue_entry(uint32_t sys_flag) noexcept nogil:
    """Whether records with that sys flag have an entry in a consume queue: prepared and rolled-back ones have none."""
    return sys_flag & SYS_FLAG_PREPARED == 0

cdef const uint8_t* find_property(const RecordView* view, const char* name, uint32_t name_bytes,
                                  uint32_t* value_bytes) noexcept nogil
cdef int64_t record_deliver_at(const RecordView* view) noexcept nogil
cdef int64_t record_batch_entries(const RecordView* view) noexcept nogil
cdef int64_t hash_tag(const uint8_t* text, uint32_t size) noexcept nogil
cdef int64_t record_tag_hash(const RecordView* view) noexcept nogil
cdef bint topic_of(const RecordView* view, const uint8_t** topic, uint32_t* topic_bytes) noexcept nogil
cdef int64_t find_record(const uint8_t* base, int64_t start, int64_t end, int64_t size,
                         int64_t first_offset) noexcept nogil
