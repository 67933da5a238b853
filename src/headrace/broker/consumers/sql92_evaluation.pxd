from libc.stdint cimport int64_t, uint8_t, uint32_t
from headrace.batch cimport RecordView
from headrace.format.name_set cimport NameSet
from headrace.format.record_properties cimport Properties

cdef struct Value:
    int kind
    int64_t integer             # of a truth value 0 or 1
    double decimal
    const uint8_t* text
    uint32_t text_bytes

cdef struct Operation:
    int code
    bint is_negated
    int accepted                # of O_ORDER: which of LESS, EQUAL and GREATER are true
    int first                   # operand; of O_ANY and O_ALL where theirs begin in _operands; of O_PROPERTY its slot
    int second                  # operand; of O_ANY and O_ALL how many
    Value constant              # of O_CONSTANT, and the text of a text test
    NameSet* choices            # of O_IN

cdef class Filter:
    cdef readonly str text
    cdef readonly int64_t steps
    cdef list _keep                 # bytes that operations point into
    cdef dict _names                # of properties -> their slots
    cdef Operation* _operations
    cdef int _count
    cdef int _room
    cdef int* _operands             # of O_ANY and O_ALL
    cdef int _operand_count
    cdef int _root
    cdef Properties _properties     # of the message at hand
    cdef bint passes(self, const RecordView* view) except -1
    cdef Operation* _add(self, int code) except NULL
    cdef int _last(self)
    cdef int _of(self, int operand) except -1
    cdef int _set_text(self, Value* value, str text) except -1
    cdef int _add_many(self, int code, list operands) except -1
    cdef int _add_one(self, int code, int operand, bint is_negated) except -1
    cdef bint _evaluate(self, int number, Value* result) except -1
    cdef bint _join(self, Operation* op, Value* result) except -1
