"""CQL: continuous queries as text, read into descriptions and built with the fluent API."""
