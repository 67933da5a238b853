"""The properties of a sent message: for compiled modules alone."""
