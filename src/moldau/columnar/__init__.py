"""Record batches as Arrow columns, and Arrow columns as record batches, without a Python object per record."""
