"""Real deployments: keys for TLS and SuperNode authentication, and a rehearsal of one on the loopback interface."""
