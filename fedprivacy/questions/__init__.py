"""Questions to private records: counts, means, quantiles; each is a release that is charged like a local step."""
