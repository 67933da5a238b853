"""The topics that rows go to, found by name: for compiled code only (topic_table.pxd)."""
