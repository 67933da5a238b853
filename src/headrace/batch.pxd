# The currency between layers: see batch.pyi for the public description.
#
# Everything in a PublishEntry or RecordView is borrowed. A PublishBatch is valid until its codec parses the next
# read; a RecordBatch is valid until clear(), which drops the pins that keep its segments mapped.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct PublishEntry:
    const char* body
    const char* properties      # encoded properties string without the checksum; NULL when there are none
    int64_t tag_hash
    int64_t deliver_at_ms       # 0 = at once; otherwise ms since 1970 (NSQ DPUB)
    uint32_t body_bytes
    uint32_t properties_bytes
    uint32_t destination        # index into PublishBatch.destinations
    uint32_t command_entries    # > 0 on the first entry of a command: how many entries the command has
    # what an entry may say of its own; the record gets what is not 0 or NULL
    int64_t born_ms             # 0 = the store time
    int64_t prepared_offset     # physical offset of the half message
    uint64_t born_host          # as PublishBatch.born_host; 0 = the batch's
    const char* born_v6         # 20 bytes as PublishBatch.born_host_v6, wins over born_host; NULL = the batch's
    uint32_t flag               # the application's
    uint32_t sys_flag           # the encoder sets the two bits that say whether the hosts are IPv6, whatever is given
    int32_t reconsume_times
    # filled in by the store; of a refused destination: -1, 0, 0
    uint32_t record_bytes
    int64_t physical_offset
    int64_t queue_offset

cdef class PublishBatch:
    cdef PublishEntry* entries
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef readonly int64_t body_bytes    # sum over the entries
    cdef public list destinations       # what the codec names: one key (a topic name, str) per destination
    cdef public list queues             # the same length: what the caller resolved them to, None where it refused
    cdef public object owner            # keeps the receive buffer alive while the batch is borrowed from
    cdef public uint64_t born_host      # IPv4 as u32 << 32 | port; 0 when unknown or IPv6
    cdef public bytes born_host_v6      # 16 bytes + i32 port, or None
    cdef public bint uses_reserve       # it may fill what the log keeps free at the end of its last segment
    cdef list _totals                   # what totals() found when there were ``_totalled`` entries, or None
    cdef Py_ssize_t _totalled
    cdef PublishEntry* add(self) except NULL
    cdef PublishEntry* add_like(self, const PublishEntry* other) except NULL    # not one of this batch: entries move
    cpdef void clear(self)

cdef class CopiedBatch(PublishBatch):
    cdef bytearray _memory              # of fixed size: what the entries point to
    cdef Py_ssize_t _used
    cdef bint has_bytes(self, Py_ssize_t length) noexcept
    cdef bint has_room(self, PublishBatch source) noexcept
    cdef char* _copy(self, const char* data, Py_ssize_t length) noexcept

cdef struct RecordView:
    const char* record          # first byte of the whole record
    const char* body
    const char* properties
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp_ms
    int64_t tag_hash
    uint32_t record_bytes
    uint32_t body_bytes
    uint32_t properties_bytes   # includes the checksum property
    uint32_t queue_id
    uint16_t attempts           # deliveries so far, this one included; 0 outside a channel

cdef class RecordBatch:
    cdef RecordView* views
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef readonly int64_t record_bytes  # sum over the views
    cdef readonly bint verifies         # a record's checksum is looked at when it is added, whoever wrote it
    cdef list pins                      # objects that keep the viewed memory mapped
    cdef object last_pin
    cdef RecordView* add(self) except NULL
    cdef int pin(self, object segment) except -1
    cpdef void clear(self)

# One FIN, REQ or TOUCH.
cdef enum:
    SETTLE_FINISH = 0
    SETTLE_REQUEUE = 1
    SETTLE_TOUCH = 2

# Why a settle operation failed.
cdef enum:
    SETTLE_OK = 0
    SETTLE_NOT_IN_FLIGHT = 1
    SETTLE_NOT_OWNER = 2

cdef struct SettleEntry:
    uint64_t message_id         # as on the wire: node id << 48 | position
    int64_t delay_ms            # REQ only, >= 0, already clamped by the codec
    int32_t kind                # SETTLE_FINISH ...
    int32_t result              # filled in by the channel: SETTLE_OK ...

cdef class SettleBatch:
    cdef SettleEntry* entries
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef SettleEntry* add(self) except NULL
    cpdef void clear(self)
