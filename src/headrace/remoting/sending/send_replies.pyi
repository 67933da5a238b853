"""Responses to plain sends: for compiled modules alone."""
