"""What the operations of core ATen mean, in tensors of the frontend.

Each file has a table of functions `meaning(site, *args, **kwargs)` under the operations' names; their arguments are
those of the ATen schema. Adding an operation is adding an entry.
"""
