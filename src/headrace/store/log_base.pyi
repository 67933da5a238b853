class LogBase:
    """The reading side that every log has; its one method is for compiled callers (see the pxd)."""
