"""Window aggregates whose state is an object: exact quantiles, collections, sketches, your own."""
