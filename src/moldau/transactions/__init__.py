"""Producer ids. Transactions are not implemented."""
