"""Messages on their way in: headers and bodies become entries of a batch, appended batches become answers."""
