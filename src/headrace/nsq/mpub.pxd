from headrace.batch cimport PublishBatch

cpdef Py_ssize_t split_lines(PublishBatch batch, bytes body, Py_ssize_t most_message_bytes, long long deliver_at_ms) except -1
cpdef Py_ssize_t split_counted(PublishBatch batch, bytes body, Py_ssize_t most_message_bytes, Py_ssize_t most_messages,
                               long long deliver_at_ms) except -1
