"""What the broker does for each request of a RocketMQ client: a module for each subject, and their ``table``."""
