"""Durable files in object stores: requests that are repeated, objects, local copies of them."""
