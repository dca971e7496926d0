"""Cases, operands and red zones for tests of ops."""
