"""Turns edited rows into state: one module for each kind that can be written."""
