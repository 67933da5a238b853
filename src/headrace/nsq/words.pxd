# The words of a command's line: for the codec.

from libc.stdint cimport uint64_t

# In the order of COMMAND_NAMES; a bit each in Reader.allowed and Reader.ignored.
cdef enum:
    CMD_IDENTIFY = 0
    CMD_AUTH = 1
    CMD_SUB = 2
    CMD_RDY = 3
    CMD_FIN = 4
    CMD_REQ = 5
    CMD_TOUCH = 6
    CMD_CLS = 7
    CMD_NOP = 8
    CMD_PUB = 9
    CMD_MPUB = 10
    CMD_DPUB = 11
    COMMANDS = 12

cdef struct Word:                               # of a command's line
    const char* at
    Py_ssize_t size

# Whether a topic or channel may have this name: ^[.a-zA-Z0-9_-]+(#ephemeral)?$ of 1 to 64 bytes.
cdef bint is_name(const char* name, Py_ssize_t length) noexcept nogil

# Read digits; an empty parameter is 0, a number above 2^64 - 1 stays there; False on any other byte.
cdef bint load_number(const char* at, Py_ssize_t length, uint64_t* value) noexcept nogil

# Find the first four words of a line and return how many there are: no command looks at a fifth.
cdef Py_ssize_t split_words(const char* at, const char* stop, Word* words) noexcept

# Return the CMD_... that a word names, -1: none.
cdef int find_command(const char* word, Py_ssize_t length) noexcept

cdef bytes text_of(Word word)

# Return the name that a command begins with.
cdef bytes first_word(const char* at, const char* stop)
