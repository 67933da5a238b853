"""The stream reader: where a query begins, what a micro-batch takes, what its checkpoint says, how far it is behind."""
