# Responses to plain sends: for modules that append sends and answer them.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from headrace.batch cimport PublishEntry

cdef enum:
    RESPONSE_BYTES = 384                # at most, one message id included
    ID_TEXT_BYTES = 57                  # an IPv6 id and a comma

cdef struct Send:
    int32_t opaque
    uint32_t first_entry
    uint32_t entries
    uint32_t destination
    uint8_t serialize
    uint8_t is_oneway
    uint32_t unique_bytes
    const char* unique                  # the unique key of a half message, NULL for any other

# Write the response to a send that was appended; return where it ends. ``entry`` is its first message, ``host`` the broker's
# address and port in hex digits. It takes up to RESPONSE_BYTES, ID_TEXT_BYTES for each message but the first, and its
# unique key.
cdef char* put_reply(char* at, const Send* send, const PublishEntry* entry, int64_t queue_id, const char* host,
                     Py_ssize_t host_chars) noexcept nogil
