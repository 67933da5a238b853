"""The words of a command's line: which command it is, names, numbers.

Ref: nsq.md 1.2.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp

COMMAND_NAMES = ("IDENTIFY", "AUTH", "SUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP", "PUB", "MPUB", "DPUB")

cdef enum:
    MAX_NAME_BYTES = 64

cdef uint8_t[256] _name_bytes       # which bytes may stand in a name


cdef int _fill_table() except -1:
    cdef int value
    for value in b".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-":
        _name_bytes[value] = 1
    return 0


_fill_table()


cdef bint is_name(const char* name, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t stem = length
    cdef Py_ssize_t index
    if not 1 <= length <= MAX_NAME_BYTES:
        return False
    if length > 10 and name[length - 10] == c"#" and memcmp(name + length - 10, <const char*>b"#ephemeral", 10) == 0:
        stem = length - 10
    for index in range(stem):
        if not _name_bytes[<uint8_t>name[index]]:
            return False
    return True


def is_valid_name(bytes name not None):
    return is_name(name, len(name))


cdef bint load_number(const char* at, Py_ssize_t length, uint64_t* value) noexcept nogil:
    cdef uint64_t result = 0
    cdef uint64_t digit
    cdef Py_ssize_t index
    for index in range(length):
        if not c"0" <= at[index] <= c"9":
            return False
        digit = <uint64_t>(at[index] - c"0")
        if result > (<uint64_t>0xFFFFFFFFFFFFFFFF - digit) / 10:
            result = <uint64_t>0xFFFFFFFFFFFFFFFF
        else:
            result = result * 10 + digit
    value[0] = result
    return True


cdef Py_ssize_t split_words(const char* at, const char* stop, Word* words) noexcept:
    cdef const char* space
    cdef Py_ssize_t count = 0
    while count < 4:
        space = <const char*>memchr(at, c" ", stop - at) if stop > at else NULL
        words[count].at = at
        words[count].size = (stop if space == NULL else space) - at
        count += 1
        if space == NULL:
            break
        at = space + 1
    return count


cdef int find_command(const char* word, Py_ssize_t length) noexcept:
    if length == 3:
        if memcmp(word, <const char*>b"PUB", 3) == 0:
            return CMD_PUB
        if memcmp(word, <const char*>b"FIN", 3) == 0:
            return CMD_FIN
        if memcmp(word, <const char*>b"REQ", 3) == 0:
            return CMD_REQ
        if memcmp(word, <const char*>b"RDY", 3) == 0:
            return CMD_RDY
        if memcmp(word, <const char*>b"NOP", 3) == 0:
            return CMD_NOP
        if memcmp(word, <const char*>b"SUB", 3) == 0:
            return CMD_SUB
        if memcmp(word, <const char*>b"CLS", 3) == 0:
            return CMD_CLS
    elif length == 4:
        if memcmp(word, <const char*>b"MPUB", 4) == 0:
            return CMD_MPUB
        if memcmp(word, <const char*>b"DPUB", 4) == 0:
            return CMD_DPUB
        if memcmp(word, <const char*>b"AUTH", 4) == 0:
            return CMD_AUTH
    elif length == 5 and memcmp(word, <const char*>b"TOUCH", 5) == 0:
        return CMD_TOUCH
    elif length == 8 and memcmp(word, <const char*>b"IDENTIFY", 8) == 0:
        return CMD_IDENTIFY
    return -1


cdef bytes text_of(Word word):
    return PyBytes_FromStringAndSize(word.at, word.size)


cdef bytes first_word(const char* at, const char* stop):
    cdef Py_ssize_t size = 0
    while at + size < stop and c"A" <= at[size] <= c"Z":
        size += 1
    return PyBytes_FromStringAndSize(at, size)
