"""What lies on the disk: how records, side files and names are written and read.

No I/O but for side files, and for what is read of a folder without its broker: its files, and entries of queues.

``record`` encodes a message as RocketMQ 4 does (layout V1, with a checksum of the whole record as a property), checks
and decodes it, and finds the next valid one behind damage; ``checksum`` is CRC-32; ``compression`` and ``inflate`` undo
what clients did to bodies. ``side_file`` reads small checksummed JSON files and replaces them in one step,
``side_shapes`` is what they hold; ``fastjson`` reads and writes RocketMQ's JSON; ``durable_mark`` is the bytes of that
file. ``names`` spells files and folders; ``queue_entry`` reads the files of consume queues; ``layout`` is what lies
where in a store's folder; ``sparse`` makes files that are mostly holes; ``epochs`` says what a log left out;
``findings`` is how damage is named, ``lost_ranges`` where it lies. The package must not know who stores or reads what.
Ref: docs/formats.
"""
