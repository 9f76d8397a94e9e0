"""What adapting brings and costs: fusion, migration, rescaling, skew, a cluster."""
