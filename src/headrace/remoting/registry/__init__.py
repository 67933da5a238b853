"""The registry's protocol: RocketMQ's name server, served by ``server`` from the tables of ``headrace.registry``."""
