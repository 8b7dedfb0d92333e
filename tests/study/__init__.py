"""A package, so that its conftest is not confused with the one of all tests."""
