"""The reading side that every log has."""


cdef class LogBase:
    cdef int view(self, int64_t physical_offset, uint32_t record_bytes, RecordBatch into) except -1:
        """Add the record at ``physical_offset`` to ``into``, with the pin that keeps its memory mapped.

        Args:
            physical_offset: Where the record starts.
            record_bytes: Its size as the consume queue gives it; 0 takes the size from the record.

        Returns:
            VIEW_OK, or why nothing was added: VIEW_DAMAGED, VIEW_COLD, VIEW_GONE.
        """
        raise NotImplementedError
