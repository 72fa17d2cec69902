"""The round-by-round dashboard: a read-only API over run stores, and a page that shows it."""
