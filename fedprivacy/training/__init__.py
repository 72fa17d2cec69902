"""DP-SGD on one shard: sampling, the Gaussian mechanism and its noise, optimisers, adaptive clipping."""
