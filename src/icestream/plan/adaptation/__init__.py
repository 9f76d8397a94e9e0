"""Adaptation: fusion, balance, migration, split and combine, as pure decisions."""
