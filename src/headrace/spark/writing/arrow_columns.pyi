"""Columns of an Arrow batch: for compiled modules alone."""
