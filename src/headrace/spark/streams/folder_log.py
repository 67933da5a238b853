"""Which log of a stream's checkpoint the log of a folder is: folders move, and are put in each other's place."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.files import StoreFiles
from headrace.spark.streams.positions import Position, QueueKey


def kept_name(files: StoreFiles, position: Position, asked_name: str) -> str | None:
    """Return the name under which the checkpoint has a folder's log, whatever the folder is called now.

    By its identity it is the same store. A name that is asked for and that the checkpoint does not have is another log,
    read from its beginning, unless the checkpoint has this very store: None.

    Args:
        files: The folder, called as it is now.
        position: Of the checkpoint, with logs.
        asked_name: Option ``brokerName``; empty: none.

    Raises:
        ConfigError: another name is asked for, or it cannot be said which log of the checkpoint this is.
    """
    if files.broker in position.brokers:
        return files.broker
    identities = {broker: position.stores.get(broker, ("",))[0] for broker in position.brokers}
    same = sorted(broker for broker, store_id in identities.items() if store_id and store_id == files.store_id)
    if len(same) == 1 and not asked_name:
        return same[0]
    if asked_name and not same:
        return None
    names = ", ".join(map(repr, same or sorted(identities)))
    reason = f"the checkpoint has no log of broker {files.broker!r} but of {names}: "
    if same:
        raise ConfigError(
            f"{reason}set option brokerName to the name under which this folder was read", key="brokerName"
        )
    is_other = files.store_id and all(identities.values())
    told = "this folder is another store" if is_other else "nothing says which store that was"
    raise ConfigError(
        f"{reason}{told}; set option brokerName to the name under which this folder was read, or to a new one to "
        "read it from its beginning",
        key="brokerName",
    )


def require_folder_of(files: StoreFiles, planned: Position, brokers: set[str], *, is_identity_checked: bool) -> None:
    """Refuse to read a planned batch in another store's folder than it was planned over.

    Args:
        files: The folder.
        planned: End of the batch.
        brokers: Those of whose logs the batch reads something.
        is_identity_checked: Whether another store under the same name is refused.

    Raises:
        ConfigError: the folder has a log of another name.
        DataLossError: the log of its name has another identity.
    """
    others = sorted(brokers - {files.broker})
    if others:
        raise ConfigError(
            f"a batch of the log of broker {others[0]!r} was planned and not finished, and this folder is "
            f"{files.broker!r}: run the query once over the folder that it had, or use a new checkpoint",
            key="store",
        )
    store_id = planned.stores.get(files.broker, ("",))[0]
    if brokers and is_identity_checked and store_id and files.store_id and files.store_id != store_id:
        raise DataLossError(
            f"a batch of the log of broker {files.broker!r} was planned over another store ({store_id}) than this "
            f"folder is now ({files.store_id}): its offsets name other messages",
            broker=files.broker, first_offset=0, end_offset=planned.offsets[QueueKey.of_log(files.broker)],
        )  # fmt: skip
