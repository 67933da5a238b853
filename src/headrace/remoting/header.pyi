"""Headers of frames, JSON and ROCKETMQ, as spans of the receive buffer: for the package's compiled modules only."""
