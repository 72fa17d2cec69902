"""The ServerApp of this repository: resolve the configuration, run the rounds, record them."""

from fedprivacy.server.app import server_app

app = server_app()
