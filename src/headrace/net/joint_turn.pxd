# What the reads of one turn of the event loop bring: see joint_turn.pyi for the public description.

cdef class JointTurn:
    cdef public Py_ssize_t joined
    cdef public object call_soon
    cdef public Py_ssize_t _alone               # reads still to come that are not joined
    cdef Py_ssize_t _lone_turns                 # turns with one share only, one behind the other
    cdef list _shares
    cdef bint _is_ending                        # what there was is being appended and answered

    cpdef bint is_worth_it(self)
    cpdef int add(self, object share) except -1
    cpdef int end_turn(self) except -1
