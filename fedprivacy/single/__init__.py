"""DP-SGD on one shard, without a federation: private gradients for any loop, their account, and a loop."""
