from libc.stdint cimport uint8_t, uint32_t

# CRC-32 (IEEE 802.3, as zlib and java.util.zip): continue `crc` (0 to start) over `size` bytes.
cdef uint32_t crc32(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil
