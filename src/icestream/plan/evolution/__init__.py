"""What of a query may change while its checkpoint goes on."""
