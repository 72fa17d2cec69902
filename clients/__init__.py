"""The ClientApp that a data owner deploys."""
