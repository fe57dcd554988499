"""Measurements of speed, run by hand or `make bench`. They may import everything; nothing imports them."""
