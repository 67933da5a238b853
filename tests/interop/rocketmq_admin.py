"""Every mqadmin command of spec/remoting.md 4.9, what it must print, and the cluster it is pointed at.

The table runs top to bottom: later commands see what earlier ones made. ``{name}`` is filled in from the situation:
namesrv, broker (address), broker_name, cluster, topic, group, producer (group), client (id of the online consumer),
msg_id (offset id), unique_key, key. ``clusterRT`` never ends by itself and has a test of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

BOTH = ("4.9.7", "5.5.0")


@dataclass(frozen=True)
class Step:
    """One command and a pattern its output must match."""

    line: str
    expect: str
    versions: tuple[str, ...] = BOTH
    ours_only: bool = False  # RocketMQ does so only when told to
    refused: bool = False  # the command ends with the broker's refusal

    @property
    def name(self) -> str:
        return self.line.split()[0]


STEPS = [
    Step("clusterList -n {namesrv}", r"{cluster}\s+{broker_name}\s+0\s+{broker}\s+V4"),
    Step("clusterList -n {namesrv} -m", r"{cluster}\s+{broker_name}\s+\d+\s+\d+\s+\d+\s+\d+"),
    Step("updateTopic -n {namesrv} -c {cluster} -t AdminTopic -r 4 -w 4", r"create topic to {broker} success"),
    Step("updateTopic -n {namesrv} -b {broker} -t AdminOne -r 1 -w 1", r"create topic to {broker} success"),
    Step("updateTopic -n {namesrv} -c {cluster} -t AdminOrder -r 4 -w 4 -o true", r"set cluster orderConf"),
    Step("topicList -n {namesrv}", r"(?s)AdminTopic.*|AdminOne"),
    Step("topicList -n {namesrv} -c", r"{cluster}\s+{topic}\s+{group}"),
    Step("topicClusterList -n {namesrv} -t AdminTopic", r"(?m)^{cluster}$"),
    Step("topicRoute -n {namesrv} -t AdminTopic", r'(?s)"brokerName":"{broker_name}".*"readQueueNums":4'),
    Step("topicRoute -n {namesrv} -t AdminOrder", r'"orderTopicConf":".*{broker_name}:4', ours_only=True),
    Step("topicStatus -n {namesrv} -t {topic}", r"{broker_name}\s+0\s+0\s+\d+\s+\d{{4}}-"),
    Step("updateTopicPerm -n {namesrv} -c {cluster} -t AdminTopic -p 4", r"update topic perm from"),
    Step("topicRoute -n {namesrv} -t AdminTopic", r'(?s)"perm":4'),
    Step("updateOrderConf -n {namesrv} -t AdminOrder -m put -v {broker_name}:8", r"update orderConf success"),
    Step("updateOrderConf -n {namesrv} -t AdminOrder -m get", r"{broker_name}:8"),
    Step("updateOrderConf -n {namesrv} -t AdminOrder -m delete", r"delete orderConf success"),
    Step("allocateMQ -n {namesrv} -t AdminTopic -i 10.0.0.1,10.0.0.2", r"10\.0\.0\.1"),
    Step(
        "updateSubGroup -n {namesrv} -c {cluster} -g AdminGroup -r 5", r"create subscription group to {broker} success"
    ),
    Step("getConsumerConfig -n {namesrv} -g AdminGroup", r"retryMaxTimes\s+=\s+5"),
    Step("brokerStatus -n {namesrv} -b {broker}", r"(?s)brokerVersionDesc.*putTps"),
    Step("brokerStatus -n {namesrv} -c {cluster}", r"commitLogMaxOffset"),
    Step("brokerConsumeStats -b {broker}", r"(?s){topic}\s+{group}\s+{broker_name}.*Diff Total: \d+"),
    Step("getBrokerConfig -n {namesrv} -b {broker}", r"brokerName\s*=\s*{broker_name}"),
    Step("updateBrokerConfig -n {namesrv} -b {broker} -k longPollingEnable -v true", r"update broker config success"),
    Step("consumerProgress -n {namesrv} -g {group}", r"(?s){topic}.*{broker_name}.*Diff Total: \d"),
    Step("consumerProgress -n {namesrv}", r"{group}"),
    Step("consumerConnection -n {namesrv} -g {group}", r"(?s){client}.*{topic}.*ConsumeType"),
    Step("consumerStatus -n {namesrv} -g {group}", r"{client}"),
    Step("consumerStatus -n {namesrv} -g {group} -i {client}", r"(?s)PROP_CONSUME_TYPE.*{topic}"),
    Step("producerConnection -n {namesrv} -g {producer} -t {topic}", r"ClientId|clientId|\d+\.\d+"),
    Step("producer -b {broker}", r"{producer}"),
    Step("queryMsgById -n {namesrv} -i {msg_id}", r"(?s)OffsetID:\s+{msg_id}.*Topic:\s+{topic}", ("4.9.7",)),
    Step("queryMsgById -n {namesrv} -c {cluster} -t {topic} -i {msg_id}", r"Topic:\s+{topic}", ("5.5.0",)),
    Step("queryMsgByKey -n {namesrv} -t {topic} -k {key}", r"{unique_key}"),
    Step("queryMsgByUniqueKey -n {namesrv} -t {topic} -i {unique_key}", r"(?s)Topic:\s+{topic}"),
    Step("queryMsgById -n {namesrv} -i {msg_id} -g {group} -d {client}", r"CR_SUCCESS", ("4.9.7",)),
    Step("queryMsgByOffset -n {namesrv} -t {topic} -b {broker_name} -i 0 -o 0", r"Topic:\s+{topic}"),
    Step("printMsg -n {namesrv} -t {topic} -d true", r"body-"),
    Step("printMsgByQueue -n {namesrv} -t {topic} -a {broker_name} -i 0 -p true -d true", r"body-"),
    Step("consumeMessage -n {namesrv} -t {topic} -c 2", r"body|Consume ok"),
    Step("sendMessage -n {namesrv} -t {topic} -p hello -k sendkey", r"SEND_OK"),
    Step("checkMsgSendRT -n {namesrv} -t {topic} -a 3 -s 100", r"Avg RT"),
    Step("sendMsgStatus -n {namesrv} -b {broker_name} -c 2 -s 100", r"SEND_OK"),
    Step("resetOffsetByTime -n {namesrv} -g {group} -t {topic} -s 0", r"{broker_name}\s+\d"),
    Step("skipAccumulatedMessage -n {namesrv} -g {group} -t {topic}", r"{broker_name}\s+\d"),
    Step("cloneGroupOffset -n {namesrv} -s {group} -d AdminClone -t {topic}", r"clone group offset success"),
    Step("queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker}", r"(?s)Queue data.*physicOffset|maxQueueIndex|Subscription"),
    Step("statsAll -n {namesrv} -t {topic}", r"{topic}\s+{group}"),
    Step("wipeWritePerm -n {namesrv} -b {broker_name}", r"wipe write perm of broker\[{broker_name}\].*OK, \d+"),
    Step("addWritePerm -n {namesrv} -b {broker_name}", r"add write perm of broker\[{broker_name}\].*OK, \d+"),
    Step("updateKvConfig -n {namesrv} -s NS -k key1 -v value1", r"create or update kv config to namespace success"),
    Step("deleteKvConfig -n {namesrv} -s NS -k key1", r"delete kv config from namespace success"),
    Step("getNamesrvConfig -n {namesrv}", r"\w+\s*=\s*\S+"),
    # A Headrace registry has no setting that changes while it runs, and says so.
    Step(
        "updateNamesrvConfig -n {namesrv} -k orderMessageEnable -v true", r"CODE: 16 .*orderMessageEnable", refused=True
    ),
    Step("cleanUnusedTopic -n {namesrv} -b {broker}", r"success"),
    Step("cleanExpiredCQ -n {namesrv} -b {broker}", r"success"),
    Step("deleteExpiredCommitLog -n {namesrv} -b {broker}", r"success"),
    Step("exportMetadata -n {namesrv} -c {cluster} -f {folder}", r"export .* success"),
    Step("exportConfigs -n {namesrv} -c {cluster} -f {folder}", r"export .* success"),
    Step("exportMetrics -n {namesrv} -c {cluster} -f {folder}", r"export .* success"),
    Step("deleteTopic -n {namesrv} -c {cluster} -t AdminTopic", r"delete topic \[AdminTopic\] from cluster"),
    Step(
        "deleteSubGroup -n {namesrv} -c {cluster} -g AdminGroup",
        r"delete subscription group \[AdminGroup\] from broker",
    ),
    Step("topicList -n {namesrv}", r"(?s)^(?!.*AdminTopic).*AdminOne"),
]
