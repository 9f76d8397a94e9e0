"""What users compose, as pure data: queries over windows, events, updates and jobs."""
