"""Messages on their way out: what a pull lets through, pulls known from before, single records, bulk readers."""
