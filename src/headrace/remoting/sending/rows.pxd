# The body of SEND_SEQUENCED as a batch: see rows.pyi for the public description.

from headrace.remoting.sending.send_intake cimport Limits, SendIntake

cdef class RowIntake:
    cdef Limits limits
    cdef SendIntake intake
