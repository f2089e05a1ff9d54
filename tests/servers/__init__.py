"""Servers for the tests: found, started on loopback, and gone when the tests are."""
