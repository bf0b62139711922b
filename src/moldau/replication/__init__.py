"""Replication: fetchers of followers, ISR changes of leaders, replication quotas."""
