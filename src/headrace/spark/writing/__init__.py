"""Rows of a DataFrame become messages: the plan on the driver, the requests of each task, the end of the write."""
