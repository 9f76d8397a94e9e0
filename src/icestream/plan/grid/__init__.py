"""Plans of windows: their parts, what they store (`cost`), what they share (`compose`), `lower`."""
