"""The properties of the message that a row becomes: for compiled code only (row_properties.pxd)."""
