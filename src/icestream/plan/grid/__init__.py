"""Plans of windows: their parts, their storage plan (`cost`) and how windows share (`compose`)."""
