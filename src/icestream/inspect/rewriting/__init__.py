"""How edited rows become state: one module for each kind that can be written."""
