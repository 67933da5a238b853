"""The values of SQL92 filters: how parts of an expression are compared and combined for one message.

An expression is an array of operations, each of which names its operands by their numbers; ``sql92`` adds them, operands
first. A pull has them evaluated for each message it looks at, so nothing here makes an object: texts point into the
record. Values have RocketMQ's odd rules, and clients rely on them: properties are texts, read as what they are compared
with; what cannot be read so fails the whole expression. A null stands for a missing property and for what follows from
one. Ref: remoting.md 4.12.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.math cimport INFINITY, NAN, isnan, trunc
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from headrace.batch cimport RecordView
from headrace.format.name_set cimport NameSet, fill_set, free_set, is_in
from headrace.format.record_properties cimport Properties, Wanted, find_properties, free_wanted, index_wanted
from headrace.format.utf8 cimport copy_as_utf8, is_ascii

cdef extern from "<string.h>" nogil:
    const void* memmem(const void* text, size_t size, const void* part, size_t part_bytes)

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef enum:                      # what an operation does
    O_CONSTANT
    O_PROPERTY
    O_ANY
    O_ALL
    O_NOT
    O_NEVER
    O_MINUS
    O_IS_NULL
    O_EQUAL
    O_ORDER
    O_IN
    O_CONTAINS
    O_STARTS
    O_ENDS

cdef enum:                      # kinds of values
    V_NULL
    V_TRUTH
    V_INTEGER
    V_DECIMAL
    V_TEXT

cdef enum:                      # how two values may stand, as bits
    LESS = 1
    EQUAL = 2
    GREATER = 4

cdef enum:
    FIRST_OPERATIONS = 8
    MAX_INTEGER_CHARACTERS = 40
    MAX_DECIMAL_CHARACTERS = 1_000  # one of 32,000 takes 50 us, and an expression may read it a thousand times

cdef dict _SIGNS = {"<": LESS, "<=": LESS | EQUAL, ">": GREATER, ">=": GREATER | EQUAL}
cdef dict _TEXT_TESTS = {"CONTAINS": O_CONTAINS, "STARTSWITH": O_STARTS, "ENDSWITH": O_ENDS}

# Properties of the message at hand that are not ASCII: one filter is asked at a time, under the GIL.
cdef uint8_t* _mended = NULL
cdef size_t _mended_room = 0


cdef class Filter:
    def __cinit__(self, str text not None):
        self.text = text
        self._keep = []
        self._names = {}
        self._root = -1

    def __dealloc__(self):
        cdef int i
        for i in range(self._count):
            if self._operations[i].choices != NULL:
                free_set(self._operations[i].choices)
                PyMem_Free(self._operations[i].choices)
        PyMem_Free(self._operations)
        PyMem_Free(self._operands)
        free_wanted(&self._properties)

    def __repr__(self):
        return f"Filter({self.text!r})"

    # Making it

    cdef Operation* _add(self, int code) except NULL:
        cdef int room
        cdef void* moved
        cdef Operation* made
        if self._root >= 0:
            raise RuntimeError("the filter is finished")
        if self._count == self._room:
            room = self._room * 2 if self._room else FIRST_OPERATIONS
            moved = PyMem_Realloc(self._operations, room * sizeof(Operation))
            if moved == NULL:
                raise MemoryError
            self._operations = <Operation*>moved
            self._room = room
        made = &self._operations[self._count]
        memset(made, 0, sizeof(Operation))
        made.code = code
        self._count += 1
        return made

    cdef int _last(self):
        return self._count - 1

    cdef int _of(self, int operand) except -1:
        """Return an operand's number, which is that of an operation before."""
        if not 0 <= operand < self._count:
            raise IndexError(operand)
        return operand

    cdef int _set_text(self, Value* value, str text) except -1:
        cdef bytes raw = text.encode("utf-8", "surrogatepass")     # one with lone surrogates equals no property
        self._keep.append(raw)
        value.kind = V_TEXT
        value.text = raw
        value.text_bytes = <uint32_t>len(raw)
        return 0

    def add_constant(self, value):
        cdef Operation* made = self._add(O_CONSTANT)
        if isinstance(value, bool):
            made.constant.kind = V_TRUTH
            made.constant.integer = value
        elif isinstance(value, int):
            made.constant.kind = V_INTEGER
            made.constant.integer = value
        elif isinstance(value, float):
            made.constant.kind = V_DECIMAL
            made.constant.decimal = value
        elif value is not None:
            self._set_text(&made.constant, value)
        return self._last()

    def add_property(self, str name not None):
        cdef Operation* made = self._add(O_PROPERTY)
        made.first = self._names.setdefault(name, len(self._names))
        return self._last()

    def add_any(self, list operands not None):
        return self._add_many(O_ANY, operands)

    def add_all(self, list operands not None):
        return self._add_many(O_ALL, operands)

    cdef int _add_many(self, int code, list operands) except -1:
        cdef void* moved
        cdef Operation* made
        cdef int operand
        cdef list numbers = [self._of(operand) for operand in operands]
        made = self._add(code)
        made.first = self._operand_count
        moved = PyMem_Realloc(self._operands, (self._operand_count + len(numbers) + 1) * sizeof(int))
        if moved == NULL:
            raise MemoryError
        self._operands = <int*>moved
        for operand in numbers:
            self._operands[self._operand_count] = operand
            self._operand_count += 1
            made.second += 1
        return self._last()

    cdef int _add_one(self, int code, int operand, bint is_negated) except -1:
        cdef int first = self._of(operand)
        cdef Operation* made = self._add(code)
        made.first = first
        made.is_negated = is_negated
        return self._last()

    def add_not(self, int operand):
        return self._add_one(O_NOT, operand, False)

    def add_never_true(self, int operand):
        return self._add_one(O_NEVER, operand, False)

    def add_minus(self, int operand):
        return self._add_one(O_MINUS, operand, False)

    def add_null_test(self, int operand, *, bint negated):
        return self._add_one(O_IS_NULL, operand, negated)

    def add_equality(self, int first, int second, *, bint negated):
        cdef int right = self._of(second)
        cdef int number = self._add_one(O_EQUAL, first, negated)
        self._operations[number].second = right
        return number

    def add_order(self, str sign not None, int first, int second):
        cdef int right = self._of(second)
        cdef int number = self._add_one(O_ORDER, first, False)
        self._operations[number].second = right
        self._operations[number].accepted = _SIGNS[sign]
        return number

    def add_membership(self, int operand, choices, *, bint negated):
        cdef int number = self._add_one(O_IN, operand, negated)
        cdef list raw = [choice.encode("utf-8", "surrogatepass") for choice in choices]
        cdef NameSet* made = <NameSet*>PyMem_Malloc(sizeof(NameSet))
        if made == NULL:
            raise MemoryError
        memset(made, 0, sizeof(NameSet))
        self._operations[number].choices = made
        self._keep.append(raw)
        fill_set(made, raw)
        return number

    def add_text_test(self, str test not None, int operand, str wanted not None, *, bint negated):
        cdef int number = self._add_one(_TEXT_TESTS[test], operand, negated)
        self._set_text(&self._operations[number].constant, wanted)
        return number

    def finish(self, int root, int64_t steps):
        cdef int i
        cdef bytes raw
        cdef int number = self._of(root)
        self._properties.wanted = <Wanted*>PyMem_Malloc((len(self._names) + 1) * sizeof(Wanted))
        if self._properties.wanted == NULL:
            raise MemoryError
        for i, name in enumerate(self._names):
            raw = name.encode()
            self._keep.append(raw)
            self._properties.wanted[i].name = raw
            self._properties.wanted[i].name_bytes = <uint32_t>len(raw)
        self._properties.wanted_count = <int>len(self._names)
        index_wanted(&self._properties)
        self.steps = steps
        self._root = number

    # Asking it

    def matches(self, bytes properties not None):
        cdef RecordView view
        memset(&view, 0, sizeof(view))
        view.properties = properties
        view.properties_bytes = <uint32_t>len(properties)
        return self.passes(&view)

    cdef bint passes(self, const RecordView* view) except -1:
        cdef Value value
        if self._root < 0:
            raise RuntimeError("the filter is not finished")
        find_properties(&self._properties, view)
        _mend_texts(&self._properties, view.properties_bytes)
        return self._evaluate(self._root, &value) and value.kind == V_TRUTH and value.integer

    cdef bint _evaluate(self, int number, Value* result) except -1:
        """Evaluate an operation; return whether that was possible: else the whole expression fails."""
        cdef Operation* op = &self._operations[number]
        cdef Value first, second
        cdef Wanted* wanted
        cdef int stand = 0
        cdef bint is_true
        if op.code == O_CONSTANT:
            result[0] = op.constant
            return True
        if op.code == O_PROPERTY:
            wanted = &self._properties.wanted[op.first]
            result.kind = V_NULL if wanted.value == NULL else V_TEXT
            result.text = wanted.value
            result.text_bytes = wanted.value_bytes
            return True
        if op.code == O_ANY or op.code == O_ALL:
            return self._join(op, result)
        if not self._evaluate(op.first, &first):
            return False
        result.kind = V_TRUTH
        if op.code == O_EQUAL or op.code == O_ORDER:
            if not self._evaluate(op.second, &second):
                return False
            if op.code == O_EQUAL and first.kind == V_NULL and second.kind == V_NULL:
                is_true = True                              # as in RocketMQ
            elif op.code == O_EQUAL and first.kind != V_NULL and second.kind == V_NULL:
                is_true = False
            elif first.kind == V_NULL or second.kind == V_NULL:
                result.kind = V_NULL
                return True
            else:
                if op.code == O_ORDER and first.kind == V_TEXT and second.kind == V_TEXT:
                    if not (_read_decimal(&first) and _read_decimal(&second)):
                        return False
                if not _compare(&first, &second, &stand):
                    return False
                is_true = stand == EQUAL if op.code == O_EQUAL else stand & op.accepted != 0
        elif op.code == O_IS_NULL:
            is_true = first.kind == V_NULL
        elif op.code == O_CONTAINS or op.code == O_STARTS or op.code == O_ENDS:
            # Neither a test nor its negation is true of a missing property, or of an empty text.
            if first.kind != V_TEXT or op.constant.text_bytes == 0:
                result.integer = False
                return True
            is_true = _has_text(op.code, &first, &op.constant)
        elif op.code == O_MINUS:
            result[0] = first
            if first.kind == V_INTEGER:
                result.integer = -first.integer
            elif first.kind == V_DECIMAL:
                result.decimal = -first.decimal
            else:
                result.kind = V_NULL                        # a text has no negative
            return True
        elif first.kind == V_NULL:
            result.kind = V_NULL
            return True
        elif op.code == O_NOT:
            is_true = not first.integer
        elif op.code == O_NEVER:
            is_true = False                                 # a bare property is a text
        else:   # O_IN
            is_true = is_in(op.choices, first.text, first.text_bytes)
        result.integer = is_true != op.is_negated
        return True

    cdef bint _join(self, Operation* op, Value* result) except -1:
        """OR: true if one is, else null if one is. AND: false if one is, else null if one is."""
        cdef Value part
        cdef int i
        cdef bint decides = op.code == O_ANY
        cdef bint is_unknown = False
        for i in range(op.first, op.first + op.second):
            if not self._evaluate(self._operands[i], &part):
                return False
            if part.kind == V_NULL:
                is_unknown = True
            elif part.integer == decides:
                result.kind = V_TRUTH
                result.integer = decides
                return True
        result.kind = V_NULL if is_unknown else V_TRUTH
        result.integer = not decides
        return True


cdef int _mend_texts(Properties* found, uint32_t properties_bytes) except -1:
    """Have the wanted properties as Java reads them: each piece that is no UTF-8 is U+FFFD."""
    global _mended, _mended_room
    cdef Wanted* wanted
    cdef void* moved
    cdef size_t used = 0
    cdef int i
    for i in range(found.wanted_count):
        wanted = &found.wanted[i]
        if wanted.value == NULL or is_ascii(wanted.value, wanted.value_bytes):
            continue
        if _mended_room < <size_t>3 * properties_bytes:         # for all of them, so that none moves
            moved = PyMem_Realloc(_mended, <size_t>3 * properties_bytes)
            if moved == NULL:
                raise MemoryError
            _mended = <uint8_t*>moved
            _mended_room = <size_t>3 * properties_bytes
        wanted.value_bytes = <uint32_t>copy_as_utf8(_mended + used, wanted.value, wanted.value_bytes)
        wanted.value = _mended + used
        used += wanted.value_bytes
    return 0


cdef bint _has_text(int code, const Value* value, const Value* wanted) noexcept:
    cdef uint32_t size = wanted.text_bytes
    if size > value.text_bytes:
        return False
    if code == O_CONTAINS:
        return memmem(value.text, value.text_bytes, wanted.text, size) != NULL
    return memcmp(value.text + (value.text_bytes - size if code == O_ENDS else 0), wanted.text, size) == 0


cdef bint _compare(Value* first, Value* second, int* stand) except -1:
    """Find out how two values that are not null stand; return whether they can be compared."""
    cdef bint is_read = True
    cdef int sign
    if first.kind != second.kind:
        if first.kind == V_TEXT:
            is_read = _read_as(second, first)
        elif second.kind == V_TEXT:
            is_read = _read_as(first, second)
        if not is_read:
            return False
    if first.kind == V_TEXT:    # both are
        stand[0] = EQUAL if first.text_bytes == second.text_bytes and (
            memcmp(first.text, second.text, first.text_bytes) == 0) else LESS
    elif (first.kind == V_TRUTH) != (second.kind == V_TRUTH):
        stand[0] = LESS         # neither equal nor greater, as in RocketMQ
    elif first.kind != V_DECIMAL and second.kind != V_DECIMAL:
        sign = (first.integer > second.integer) - (first.integer < second.integer)
        stand[0] = EQUAL if sign == 0 else GREATER if sign > 0 else LESS
    elif first.kind == V_DECIMAL and second.kind == V_DECIMAL:
        stand[0] = _order_of(first.decimal, second.decimal)
    elif first.kind == V_DECIMAL:
        stand[0] = _turned(_order_of_mixed(second.integer, first.decimal))
    else:
        stand[0] = _order_of_mixed(first.integer, second.decimal)
    return True


cdef int _turned(int stand) noexcept:
    return LESS if stand == GREATER else GREATER if stand == LESS else EQUAL


cdef int _order_of(double first, double second) noexcept:
    """As Double.compare, but that -0.0 is 0.0: NaN is above every number and equal to itself."""
    if first < second:
        return LESS
    if first > second:
        return GREATER
    if first == second or (isnan(first) and isnan(second)):
        return EQUAL
    return GREATER if isnan(first) else LESS


cdef int _order_of_mixed(int64_t first, double second) noexcept:
    """Compare exactly: not every integer is a double."""
    cdef int64_t whole
    if isnan(second) or second >= 9223372036854775808.0:
        return LESS
    if second < -9223372036854775808.0:
        return GREATER
    whole = <int64_t>trunc(second)
    if first != whole:
        return LESS if first < whole else GREATER
    return _order_of(0.0, second - trunc(second))


cdef bint _read_as(const Value* other, Value* text) except -1:
    """Read a text as the kind of value it is compared with; return whether it is one."""
    if other.kind == V_TRUTH:
        text.integer = text.text_bytes == 4 and _lower(text.text[0]) == 116 and _lower(text.text[1]) == 114 and (
            _lower(text.text[2]) == 117 and _lower(text.text[3]) == 101)
        text.kind = V_TRUTH
        return True
    if other.kind == V_DECIMAL:
        return _read_decimal(text)
    # A literal of 32 bits makes RocketMQ read the property as such a number too. The least of them is not: to Java, its
    # sign is another token, and without it the number needs 64 bits.
    return _read_integer(text, 0x7FFFFFFF if -(1 << 31) < other.integer < 1 << 31 else INT64_MAX)


cdef inline uint8_t _lower(uint8_t letter) noexcept:
    return letter | 0x20


cdef bint _read_integer(Value* text, int64_t most) noexcept:
    """Read what Integer.valueOf or Long.valueOf does, up to ``most``; the least number is one further from 0."""
    cdef const uint8_t* p = text.text
    cdef const uint8_t* end = p + text.text_bytes
    cdef uint64_t number = 0
    cdef uint64_t limit
    cdef bint is_minus = False
    if text.text_bytes > MAX_INTEGER_CHARACTERS or p == end:
        return False
    if p[0] == 43 or p[0] == 45:
        is_minus = p[0] == 45
        p += 1
    if p == end:
        return False
    limit = <uint64_t>most + is_minus
    while p < end:
        if not 48 <= p[0] <= 57:
            return False
        if number > (limit - (p[0] - 48)) // 10:
            return False
        number = number * 10 + (p[0] - 48)
        p += 1
    text.kind = V_INTEGER
    text.integer = <int64_t>(0 - number) if is_minus else <int64_t>number
    return True


cdef bint _read_decimal(Value* text) except -1:
    """Read what Double.valueOf does, but for hexadecimal; return whether it is one."""
    cdef const uint8_t* p = text.text
    cdef const uint8_t* end = p + text.text_bytes
    cdef const uint8_t* start
    cdef const uint8_t* number_end = NULL
    cdef bint is_minus = False
    if text.text_bytes > MAX_DECIMAL_CHARACTERS:
        return False
    while p < end and p[0] <= 32:
        p += 1
    start = p
    if p < end and (p[0] == 43 or p[0] == 45):
        is_minus = p[0] == 45
        p += 1
    if end - p >= 3 and memcmp(p, b"NaN", 3) == 0:
        text.decimal = NAN
        p += 3
    elif end - p >= 8 and memcmp(p, b"Infinity", 8) == 0:
        text.decimal = -INFINITY if is_minus else INFINITY
        p += 8
    else:
        number_end = _end_of_number(p, end)
        if number_end == NULL:
            return False
        p = number_end
        if p < end and (_lower(p[0]) == 100 or _lower(p[0]) == 102):    # d or f
            p += 1
    while p < end and p[0] <= 32:
        p += 1
    if p != end:
        return False
    if number_end != NULL:
        text.decimal = _decimal_of(start, number_end - start)
    text.kind = V_DECIMAL
    return True


cdef const uint8_t* _end_of_number(const uint8_t* p, const uint8_t* end) noexcept:
    """Return where digits, with a point and an exponent or without, end; NULL where none begin."""
    cdef const uint8_t* start = p
    cdef const uint8_t* mark
    p = _end_of_digits(p, end)
    if p > start:
        if p < end and p[0] == 46:
            p = _end_of_digits(p + 1, end)
    else:
        if p == end or p[0] != 46:
            return NULL
        mark = p + 1
        p = _end_of_digits(mark, end)
        if p == mark:
            return NULL
    if p < end and _lower(p[0]) == 101:     # e
        mark = p + 1
        if mark < end and (mark[0] == 43 or mark[0] == 45):
            mark += 1
        if mark < _end_of_digits(mark, end):
            p = _end_of_digits(mark, end)
    return p


cdef const uint8_t* _end_of_digits(const uint8_t* p, const uint8_t* end) noexcept:
    while p < end and 48 <= p[0] <= 57:
        p += 1
    return p


cdef double _decimal_of(const uint8_t* at, Py_ssize_t size) except? -1.0:
    """Return the number that stands in ``size`` characters, which are few; too large a one is infinite."""
    cdef char text[MAX_DECIMAL_CHARACTERS + 1]
    memcpy(text, at, size)
    text[size] = 0
    return PyOS_string_to_double(text, NULL, NULL)
