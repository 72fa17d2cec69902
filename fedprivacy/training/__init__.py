"""DP-SGD on one shard: local steps, optimisers, adaptive clipping, algorithms, local evaluation."""
