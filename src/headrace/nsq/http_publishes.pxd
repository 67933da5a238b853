# Plain requests to publish over HTTP: see http_publishes.pyi for the public description.

from headrace.batch cimport PublishBatch
from headrace.nsq.joint_publishes cimport JointPublishes, Publisher

cdef class HttpPublisher(Publisher):
    cdef readonly str host
    cdef object _connection
    cdef HttpPublishes _publishes
    cdef str _topic                         # of the request whose answer is owed
    cdef bint _is_last                      # the connection ends behind the answer that is owed
    cdef bint _is_many                      # it is owed to an /mpub
    cdef long long _delay_ms                # that is asked for; -1: none is

cdef class HttpPublishes:
    cdef object _app
    cdef object _server
    cdef JointPublishes _joint
    cdef PublishBatch _batch                # of the request that is being taken over
    cdef dict _topics                       # names as the last requests spelled them -> as the broker does
    cdef object _date                       # what the two below are made with
    cdef bytes _ok
    cdef bytes _last_ok

    cdef str _find_topic(self, bytes name)
    cdef bint _publish_many(self, HttpPublisher publisher, str topic, bytes body, long long deliver_at_ms) except -1
