"""The ServerApp that a coordinator deploys."""
