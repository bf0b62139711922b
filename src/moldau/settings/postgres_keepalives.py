"""Settings with which both ends of a connection to Postgres soon notice that the other machine is gone."""

CLIENT_KEEPALIVES = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters of libpq: a silent cut of the network ends the connection within half a minute."""
SERVER_KEEPALIVES = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""Settings of the session: the server releases the locks of a client whose machine is gone within half a minute. With
its defaults, that can take more than two hours."""
