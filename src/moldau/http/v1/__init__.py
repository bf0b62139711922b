"""The HTTP API under `/v1`: topics, records, groups, streams, configs and the cluster, on `moldau.client`."""
