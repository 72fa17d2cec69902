"""Questions of private records: counts, means, quantiles; each a release that is charged like a local step."""
