"""Headers of frames, JSON and ROCKETMQ: read to spans of the bytes they came in, and written.

Reading. One pass makes a table of the ext fields; nothing is copied and no object is made, so that a send costs neither a dict nor
a str. What is looked at later is decoded later (``text_of``, ``load_number``, ``unescape``). The JSON reader takes any
order of keys, spaces, unknown keys, whatever is no text where text is usual (its spelling is its text), and nothing
that JSON itself forbids, but for what stands within such objects and arrays.

SmartGo. Its clients, which say that their language is GOLANG, begin the names of ext fields with capitals, as the fields of
its structs do, and stop reading at a name that they do not know. Such a header is read as any other; who makes text of its names
spells them as RocketMQ does, and what answers it is spelled its way.

Writing. Here is the writer for any frame; the two kinds of response that come by the million have their own
(``send_replies``, ``codec``). Every value in extFields is text, keys stand in alphabetical order, what is None is left out.

Ref: remoting.md 1.2, 1.3.
"""

import struct
from json.encoder import encode_basestring

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from headrace.format.record cimport load_u16, load_u32

from headrace.errors import ProtocolError

cdef enum:
    BINARY_FIXED_BYTES = 21
    OUR_LANGUAGE = 3            # PYTHON
    OUR_VERSION = 409
    MAX_NAME_BYTES = 32767     # of an ext field, which the binary header counts in an i16

_UNKNOWN_TO_SMARTGO = ("MSG_REGION", "TRACE_ON")
_FRAME_HEAD = struct.Struct(">II")
_NAME_SIZE = struct.Struct(">h")
_SIZE = struct.Struct(">i")


cdef inline const char* _skip_space(const char* at, const char* end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t"):
        at += 1
    return at


cdef inline const char* _string(const char* at, const char* end, Span* span) noexcept nogil:
    """Take a string, ``at`` behind its opening quote; return what follows it, or NULL."""
    span.at = at
    span.kind = SPAN_PLAIN
    while True:
        at = string_stop(at, end)
        if at >= end:
            return NULL
        if at[0] == c'"':
            span.size = <uint32_t>(at - span.at)
            return at + 1
        if at[0] != c"\\":
            return NULL
        span.kind = SPAN_ESCAPED
        at += 2
        if at >= end:
            return NULL


cdef const char* _bare(const char* at, const char* end, Span* span) noexcept nogil:
    """Take a number, true, false or null (which is an absent span); return what follows it, or NULL."""
    cdef const char* start = at
    while at < end and (c"0" <= at[0] <= c"9" or c"a" <= at[0] <= c"z" or at[0] == c"-" or at[0] == c"+"
                        or at[0] == c"." or at[0] == c"E"):
        at += 1
    span.at = start
    span.size = <uint32_t>(at - start)
    span.kind = SPAN_PLAIN
    if span.size == 0:
        return NULL
    if c"a" <= start[0] <= c"z":
        if span.size == 4 and memcmp(start, <const char*>b"null", 4) == 0:
            span.kind = SPAN_ABSENT
        elif not (span.size == 4 and memcmp(start, <const char*>b"true", 4) == 0) and not (
                span.size == 5 and memcmp(start, <const char*>b"false", 5) == 0):
            return NULL
        return at
    if start[0] == c"-":
        start += 1
    return at if start < at and c"0" <= start[0] <= c"9" else NULL


cdef inline const char* _scalar(const char* at, const char* end, Span* span) noexcept nogil:
    """Take a string, a number or a word, ``at`` where it begins; return what follows it, or NULL."""
    return _string(at + 1, end, span) if at[0] == c'"' else _bare(at, end, span)


cdef const char* _skip_nested(const char* at, const char* end) noexcept nogil:
    """Pass over an object or array under a key that means nothing to us, by counting its brackets."""
    cdef int depth = 0
    cdef Span ignored
    while at < end:
        if at[0] == c'"':
            at = _string(at + 1, end, &ignored)
            if at == NULL:
                return NULL
            continue
        if at[0] == c"{" or at[0] == c"[":
            depth += 1
        elif at[0] == c"}" or at[0] == c"]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef const char* _nested(const char* at, const char* end, Span* span) noexcept nogil:
    """Take an object or array as text, as Java does: its JSON. Return what follows it, or NULL."""
    if at[0] != c"{" and at[0] != c"[":
        return NULL
    span.at = at
    span.kind = SPAN_PLAIN
    at = _skip_nested(at, end)
    if at != NULL:
        span.size = <uint32_t>(at - span.at)
    return at


cdef inline const char* _key(const char* at, const char* end, Span* span) noexcept nogil:
    """Take a key and its colon; return the first byte of the value, or NULL."""
    at = _skip_space(at, end)
    if at >= end or at[0] != c'"':
        return NULL
    at = _string(at + 1, end, span)
    if at == NULL:
        return NULL
    at = _skip_space(at, end)
    if at >= end or at[0] != c":":
        return NULL
    at = _skip_space(at + 1, end)
    return at if at < end else NULL


cdef const char* _fields(const char** cursor, const char* end, Header* header) noexcept nogil:
    """Take the object of extFields, ``cursor`` behind its brace."""
    cdef const char* at = _skip_space(cursor[0], end)
    cdef const char* value
    cdef Field* field
    cdef uint32_t count = 0
    if at < end and at[0] == c"}":
        cursor[0] = at + 1
        header.field_count = 0
        return NULL
    while True:
        if count == MAX_FIELDS:
            return b"it has more than 1024 extFields"
        field = &header.fields[count]
        if (end - at > 8 and at[0] == c'"' and at[2] == c'"' and at[3] == c":" and <uint8_t>at[1] > 32
                and at[1] != c"\\" and at[1] != c'"'):
            # A key of one letter, as all are in the commonest request.
            field.name.at = at + 1
            field.name.size = 1
            field.name.kind = SPAN_PLAIN
            at = _skip_space(at + 4, end)
            if at == end:
                return b"extFields does not end"
        else:
            at = _key(at, end, &field.name)
            if at == NULL:
                return b"extFields is no object of strings"
            if field.name.size > MAX_NAME_BYTES:
                return b"extFields has a name above 32,767 bytes"
        value = at
        at = _scalar(value, end, &field.value)
        if at == NULL:
            at = _nested(value, end, &field.value)
            if at == NULL:
                return b"extFields has a value that is no JSON"
        if field.value.kind != SPAN_ABSENT:
            count += 1
        if at < end and at[0] == c",":
            at += 1
            continue
        at = _skip_space(at, end)
        if at >= end:
            return b"extFields does not end"
        if at[0] == c"}":
            cursor[0] = at + 1
            header.field_count = count
            return NULL
        if at[0] != c",":
            return b"extFields is no object of strings"
        at += 1


cdef enum:
    KEY_CODE = 1
    KEY_FLAG = 2
    KEY_OPAQUE = 3
    KEY_REMARK = 4
    KEY_VERSION = 5
    KEY_LANGUAGE = 6
    KEY_EXT_FIELDS = 7


cdef const char* _wrong(int meaning) noexcept nogil:
    if meaning == KEY_CODE:
        return b"its code is no 32-bit number"
    if meaning == KEY_FLAG:
        return b"its flag is no 32-bit number"
    if meaning == KEY_OPAQUE:
        return b"its opaque is no 32-bit number"
    if meaning == KEY_VERSION:
        return b"its version is no 32-bit number"
    if meaning == KEY_EXT_FIELDS:
        return b"extFields is no object of strings"
    return b"its remark or language is no text"


cdef inline int _meaning_of(const Span* key) noexcept nogil:
    """Return which key of a header this is, 0 for one that means nothing to us."""
    cdef const char* at = key.at
    cdef uint32_t size = key.size
    if size == 4:
        if memcmp(at, <const char*>b"code", 4) == 0:
            return KEY_CODE
        return KEY_FLAG if memcmp(at, <const char*>b"flag", 4) == 0 else 0
    if size == 6:
        if memcmp(at, <const char*>b"opaque", 6) == 0:
            return KEY_OPAQUE
        return KEY_REMARK if memcmp(at, <const char*>b"remark", 6) == 0 else 0
    if size == 7:
        return KEY_VERSION if memcmp(at, <const char*>b"version", 7) == 0 else 0
    if size == 8:
        return KEY_LANGUAGE if memcmp(at, <const char*>b"language", 8) == 0 else 0
    if size == 9:
        return KEY_EXT_FIELDS if memcmp(at, <const char*>b"extFields", 9) == 0 else 0
    return 0


cdef bint _set(Header* header, int meaning, const Span* value) noexcept nogil:
    cdef int64_t number
    if meaning == KEY_REMARK:
        header.remark = value[0]
        return True
    if meaning == KEY_LANGUAGE:
        header.language_name = value[0]
        return True
    if meaning == KEY_EXT_FIELDS or not load_number(value, &number) or number != <int32_t>number:
        return False
    if meaning == KEY_CODE:
        header.code = <int32_t>number
    elif meaning == KEY_FLAG:
        header.flag = <int32_t>number
    elif meaning == KEY_OPAQUE:
        header.opaque = <int32_t>number
    else:
        header.version = <int32_t>number
    return True


cdef inline const char* _check_end(const char* at, const char* end) noexcept nogil:
    if _skip_space(at, end) != end:
        return b"something follows its JSON object"
    return NULL


cdef const char* parse_json(const char* at, const char* end, Header* header) noexcept nogil:
    cdef Span key, value
    cdef const char* wrong
    cdef int meaning
    header.code = header.version = header.opaque = header.flag = 0
    header.language = -1
    header.language_name.kind = header.remark.kind = SPAN_ABSENT
    header.field_count = 0
    at = _skip_space(at, end)
    if at >= end or at[0] != c"{":
        return b"it is no JSON object"
    at = _skip_space(at + 1, end)
    if at < end and at[0] == c"}":
        return _check_end(at + 1, end)
    while True:
        at = _key(at, end, &key)
        if at == NULL:
            return b"it is no JSON object"
        meaning = _meaning_of(&key)
        if at[0] == c"{" or at[0] == c"[":
            if meaning == KEY_EXT_FIELDS and at[0] == c"{":
                at += 1
                wrong = _fields(&at, end, header)
                if wrong != NULL:
                    return wrong
            elif meaning:
                return _wrong(meaning)
            else:
                at = _skip_nested(at, end)
        else:
            at = _scalar(at, end, &value)
            if at != NULL and meaning and value.kind != SPAN_ABSENT:
                if not _set(header, meaning, &value):
                    return _wrong(meaning)
        if at == NULL:
            return b"it is no JSON object"
        at = _skip_space(at, end)
        if at >= end:
            return b"its JSON object does not end"
        if at[0] == c"}":
            return _check_end(at + 1, end)
        if at[0] != c",":
            return b"it is no JSON object"
        at += 1


cdef const char* parse_binary(const char* at, const char* end, Header* header) noexcept nogil:
    cdef Field* field
    cdef const char* ext_end
    cdef uint32_t count = 0
    cdef int64_t size
    if end - at < BINARY_FIXED_BYTES:
        return b"it is shorter than 21 bytes"
    header.code = <int16_t>load_u16(at)
    header.language = <uint8_t>at[2]
    header.language_name.kind = SPAN_ABSENT
    header.version = <int16_t>load_u16(at + 3)
    header.opaque = <int32_t>load_u32(at + 5)
    header.flag = <int32_t>load_u32(at + 9)
    size = <int32_t>load_u32(at + 13)
    at += 17
    if size < 0 or size > end - at - 4:
        return b"its remark is longer than the header"
    header.remark.at = at
    header.remark.size = <uint32_t>size
    header.remark.kind = SPAN_PLAIN if size else SPAN_ABSENT
    at += size
    size = <int32_t>load_u32(at)
    at += 4
    if size < 0 or size > end - at:
        return b"its extFields are longer than the header"
    ext_end = at + size
    while at < ext_end:
        if count == MAX_FIELDS:
            return b"it has more than 1024 extFields"
        field = &header.fields[count]
        if ext_end - at < 2:
            return b"extFields ends within a name"
        size = <int16_t>load_u16(at)
        at += 2
        if size < 0 or size > ext_end - at - 4:
            return b"extFields ends within a name"
        field.name.at = at
        field.name.size = <uint32_t>size
        field.name.kind = SPAN_PLAIN
        at += size
        size = <int32_t>load_u32(at)
        at += 4
        if size < 0 or size > ext_end - at:
            return b"extFields ends within a value"
        field.value.at = at
        field.value.size = <uint32_t>size
        field.value.kind = SPAN_PLAIN
        at += size
        count += 1
    header.field_count = count
    if at != end:
        return b"something follows its extFields"
    return NULL


cdef inline int _hex4(const char* at) noexcept nogil:
    """Return the value of four hex digits, or -1."""
    cdef int value = 0
    cdef int i
    cdef char digit
    for i in range(4):
        digit = at[i]
        if c"0" <= digit <= c"9":
            value = value << 4 | (digit - c"0")
        elif c"a" <= (digit | 0x20) <= c"f":
            value = value << 4 | ((digit | 0x20) - c"a" + 10)
        else:
            return -1
    return value


cdef inline char* _put_utf8(char* out, uint32_t c) noexcept nogil:
    if c < 0x80:
        out[0] = <char>c
        return out + 1
    if c < 0x800:
        out[0] = <char>(0xC0 | c >> 6)
        out[1] = <char>(0x80 | (c & 0x3F))
        return out + 2
    if c < 0x10000:
        out[0] = <char>(0xE0 | c >> 12)
        out[1] = <char>(0x80 | (c >> 6 & 0x3F))
        out[2] = <char>(0x80 | (c & 0x3F))
        return out + 3
    out[0] = <char>(0xF0 | c >> 18)
    out[1] = <char>(0x80 | (c >> 12 & 0x3F))
    out[2] = <char>(0x80 | (c >> 6 & 0x3F))
    out[3] = <char>(0x80 | (c & 0x3F))
    return out + 4


cdef const char* unescape(const char* at, const char* end, char** out) noexcept nogil:
    cdef int high, low
    cdef char c
    if end - at < 2:
        return NULL
    c = at[1]
    if c == c"u":
        if end - at < 6:
            return NULL
        high = _hex4(at + 2)
        if high < 0:
            return NULL
        at += 6
        if 0xD800 <= high < 0xDC00 and end - at >= 6 and at[0] == c"\\" and at[1] == c"u":
            low = _hex4(at + 2)
            if 0xDC00 <= low < 0xE000:
                out[0] = _put_utf8(out[0], 0x10000 + ((<uint32_t>high - 0xD800) << 10) + (<uint32_t>low - 0xDC00))
                return at + 6
        if 0xD800 <= high < 0xE000:
            high = 0xFFFD       # half of a character
        out[0] = _put_utf8(out[0], <uint32_t>high)
        return at
    if c == c"n":
        c = c"\n"
    elif c == c"t":
        c = c"\t"
    elif c == c"r":
        c = c"\r"
    elif c == c"b":
        c = 8
    elif c == c"f":
        c = 12
    elif c != c'"' and c != c"\\" and c != c"/":
        return NULL
    out[0][0] = c
    out[0] += 1
    return at + 2


cdef str text_of(const Span* span):
    """Return a span as text; bytes that are no UTF-8 become U+FFFD, as in Java."""
    cdef bytes plain
    cdef char* out
    cdef char* start
    cdef const char* at = span.at
    cdef const char* end = span.at + span.size
    if span.kind == SPAN_ABSENT or span.size == 0:
        return ""
    if span.kind == SPAN_PLAIN:
        return PyUnicode_DecodeUTF8(span.at, span.size, b"replace")
    # Escapes only shrink. copy_plain may write 15 bytes more than it copies.
    plain = PyBytes_FromStringAndSize(NULL, span.size + 16)
    start = out = PyBytes_AS_STRING(plain)
    while at < end:
        at = copy_plain(at, end, &out)
        if at < end:
            at = unescape(at, end, &out)
            if at == NULL:
                raise ProtocolError("malformed header: a string has an escape that JSON does not know")
    return PyUnicode_DecodeUTF8(start, out - start, b"replace")


cdef str _value_text(object value):
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)


cdef bytes _binary_header(int code, int flag, int32_t opaque, str remark, object ext):
    cdef list parts = []
    cdef bytes name, value, said
    if ext:
        for key in sorted(ext):
            if ext[key] is not None:
                name = key.encode("utf-8", "replace")
                if len(name) > MAX_NAME_BYTES:
                    continue    # bytes that were no UTF-8 grew to U+FFFD: nobody knows it by that name
                value = _value_text(ext[key]).encode("utf-8", "replace")
                parts += (_NAME_SIZE.pack(len(name)), name, _SIZE.pack(len(value)), value)
    fields = b"".join(parts)
    said = remark.encode("utf-8", "replace") if remark else b""
    # A code above 32767 is cut to 16 bits, as Java does.
    return b"".join((
        struct.pack(">HBhiii", code & 0xFFFF, OUR_LANGUAGE, OUR_VERSION, opaque, flag, len(said)),
        said, _SIZE.pack(len(fields)), fields,
    ))


cdef bytes _json_header(int code, int flag, int32_t opaque, str remark, object ext, bint is_smartgo):
    cdef list parts = [f'{{"code":{code}']
    cdef str comma = ',"extFields":{'
    if ext is not None:
        if is_smartgo:
            ext = {key[:1].upper() + key[1:]: value for key, value in ext.items() if key not in _UNKNOWN_TO_SMARTGO}
        for key in sorted(ext):
            if ext[key] is not None:
                parts += (comma, encode_basestring(key), ":", encode_basestring(_value_text(ext[key])))
                comma = ","
        parts.append("}" if comma == "," else ',"extFields":{}')
    parts.append(f',"flag":{flag},"language":"PYTHON","opaque":{opaque}')
    if remark:
        parts += (',"remark":', encode_basestring(remark))
    # Java always writes the serialize type, and a Rust client drops a header without it (ADR 0015).
    parts.append(f',"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}')
    return "".join(parts).encode("utf-8", "replace")


cdef bytes encode_frame(int serialize, int code, int flag, int32_t opaque, str remark, object ext, bytes body):
    """Encode one frame: total i32 | serialize type u8, header length u24 | header | body."""
    cdef bytes header
    if serialize == SERIALIZE_BINARY:
        header = _binary_header(code, flag, opaque, remark, ext)
    else:
        header = _json_header(code, flag, opaque, remark, ext, serialize == SERIALIZE_SMARTGO)
        serialize = SERIALIZE_JSON
    if len(header) > 0xFFFFFF:
        raise ValueError(f"a header of {len(header)} bytes does not fit into a frame")
    if body is None:
        body = b""
    return b"".join((_FRAME_HEAD.pack(4 + len(header) + len(body), serialize << 24 | len(header)), header, body))
