"""How followers get what their leaders have, and how leaders keep the in-sync set true."""
