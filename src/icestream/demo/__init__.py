"""The applications the papers ran, as programs anyone can start."""
