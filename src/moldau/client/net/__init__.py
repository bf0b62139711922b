"""Network client: connections to brokers, API versions, cluster metadata and retries."""
