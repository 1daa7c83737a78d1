"""The clients' programs for `check_table.py`, one a client."""
