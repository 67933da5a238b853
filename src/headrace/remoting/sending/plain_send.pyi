"""Taking plain sends: for compiled modules alone."""
