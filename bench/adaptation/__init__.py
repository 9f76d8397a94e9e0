"""What adaptation gains and costs: fusion, migration, rescaling, skew, a cluster."""
