// One unmodified RocketMQ client, driven line by line: what a test asks on standard input, the client does, and the
// outcome is one line of JSON on standard output. Compiled once for each client version (build.sh); what 3.2.6 does not
// have stands between "//#if modern" and "//#endif".
//
// A line is a command and key=value pairs, separated by tabs: "send	id=p	topic=T1	count=3	tags=A".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

//#if modern
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.remoting.RPCHook;
//#endif
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
//#if 4.9.8
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
//#endif
//#if 3.2.6
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
//#endif
//#if 5.5.0
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
//#endif

public class RocketAgent {
    static final PrintStream OUT = System.out;
    static final Map<String, Object> CLIENTS = new ConcurrentHashMap<>();
    static final Map<String, Queue<Map<String, Object>>> RECEIVED = new ConcurrentHashMap<>();
    static final Map<String, Queue<Map<String, Object>>> CHECKED = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // what the client prints must not be taken for an answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                String[] words = line.split("\t", -1);
                Map<String, String> options = new LinkedHashMap<>();
                for (int i = 1; i < words.length; i++) {
                    int at = words[i].indexOf('=');
                    options.put(words[i].substring(0, at), words[i].substring(at + 1));
                }
                answer.put("ok", run(words[0], options));
            } catch (MQBrokerException e) {
                answer.put("error", e.getClass().getSimpleName());
                answer.put("code", e.getResponseCode());
                answer.put("text", String.valueOf(e.getErrorMessage()));
            } catch (MQClientException e) {
                answer.put("error", e.getClass().getSimpleName());
                answer.put("code", e.getResponseCode());
                answer.put("text", String.valueOf(e.getErrorMessage()));
            } catch (Throwable e) {
                answer.put("error", e.getClass().getSimpleName());
                answer.put("text", String.valueOf(e.getMessage()));
            }
            OUT.println(json(answer));
            OUT.flush();
        }
        System.exit(0);
    }

    static Object run(String command, Map<String, String> o) throws Exception {
        switch (command) {
            case "producer": return startProducer(o);
            case "send": return send(o);
            case "consumer": return startConsumer(o);
            case "received": return drain(RECEIVED.get(o.get("id")));
            case "pull-consumer": return startPullConsumer(o);
            case "pull": return pull(o);
            case "offsets": return offsets(o);
            case "query": return query(o);
            //#if modern
            case "view": return message(((DefaultMQProducer) CLIENTS.get(o.get("id"))).viewMessage(o.get("topic"), o.get("msgId")));
            //#else
            case "view": return message(((DefaultMQProducer) CLIENTS.get(o.get("id"))).viewMessage(o.get("msgId")));
            //#endif
            case "create-topic": ((DefaultMQProducer) CLIENTS.get(o.get("id"))).createTopic(
                o.getOrDefault("key", "TBW102"), o.get("topic"), number(o, "queues", 4)
                //#if 5.5.0
                , null
                //#endif
                ); return true;
            case "queues": return publishQueues(o);
            case "shutdown": return shutdown(o.get("id"));
            //#if modern
            case "tx-producer": return startTransactionProducer(o);
            case "tx-send": return sendInTransaction(o);
            case "tx-checked": return drain(CHECKED.get(o.get("id")));
            case "request": return request(o);
            case "responder": return startResponder(o);
            case "lite": return startLite(o);
            case "lite-poll": return pollLite(o);
            case "lite-commit": ((DefaultLitePullConsumer) CLIENTS.get(o.get("id"))).commitSync(); return true;
            //#endif
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    static int number(Map<String, String> o, String key, int otherwise) {
        return o.containsKey(key) ? Integer.parseInt(o.get(key)) : otherwise;
    }

    //#if modern
    static RPCHook hook(Map<String, String> o) {
        return o.containsKey("accessKey") ? new AclClientRPCHook(new SessionCredentials(o.get("accessKey"), o.get("secretKey"))) : null;
    }
    //#endif

    static Object startProducer(Map<String, String> o) throws Exception {
        //#if modern
        DefaultMQProducer producer = o.containsKey("trace")
            ? new DefaultMQProducer(o.get("group"), hook(o), true, null) : new DefaultMQProducer(o.get("group"), hook(o));
        //#else
        DefaultMQProducer producer = new DefaultMQProducer(o.get("group"));
        //#endif
        producer.setNamesrvAddr(o.get("namesrv"));
        producer.setInstanceName(o.getOrDefault("instance", o.get("id") + System.nanoTime()));
        producer.setSendMsgTimeout(number(o, "timeout", 5000));
        producer.setRetryTimesWhenSendFailed(number(o, "retries", 2));
        producer.setCompressMsgBodyOverHowmuch(number(o, "compressOver", 4096));
        producer.setDefaultTopicQueueNums(number(o, "defaultQueues", 4));
        producer.start();
        CLIENTS.put(o.get("id"), producer);
        return true;
    }

    static Message build(Map<String, String> o, int index) throws Exception {
        String body = o.getOrDefault("body", "body-") + (o.containsKey("single") ? "" : index);
        int size = number(o, "size", 0);
        if (size > body.length()) {
            char[] more = new char[size - body.length()];
            Arrays.fill(more, 'x');
            body += new String(more);
        }
        Message message = new Message(o.get("topic"), o.getOrDefault("tags", ""), o.getOrDefault("keys", "").replace("#", "" + index),
            body.getBytes(StandardCharsets.UTF_8));
        if (o.containsKey("delay")) message.setDelayTimeLevel(number(o, "delay", 0));
        if (o.containsKey("flag")) message.setFlag(number(o, "flag", 0));
        for (Map.Entry<String, String> entry : o.entrySet())
            if (entry.getKey().startsWith("p.")) MessageAccessor.putProperty(message, entry.getKey().substring(2), entry.getValue().replace("#", "" + index));
        return message;
    }

    static Object send(Map<String, String> o) throws Exception {
        final DefaultMQProducer producer = (DefaultMQProducer) CLIENTS.get(o.get("id"));
        int count = number(o, "count", 1);
        List<Object> results = new ArrayList<>();
        String mode = o.getOrDefault("mode", "sync");
        if (mode.equals("sync")) {
            for (int i = 0; i < count; i++) results.add(result(producer.send(build(o, i))));
        } else if (mode.equals("oneway")) {
            for (int i = 0; i < count; i++) producer.sendOneway(build(o, i));
            //#if modern
        } else if (mode.equals("batch")) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < count; i++) batch.add(build(o, i));
            results.add(result(producer.send(batch)));
            //#endif
        } else if (mode.equals("queue")) {
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(o.get("topic"));
            Collections.sort(queues);
            for (int i = 0; i < count; i++) results.add(result(producer.send(build(o, i), queues.get(number(o, "queue", 0)))));
        } else if (mode.equals("selector")) {
            for (int i = 0; i < count; i++) {
                final int key = i % number(o, "orders", 3);
                results.add(result(producer.send(build(o, i), new MessageQueueSelector() {
                    public MessageQueue select(List<MessageQueue> queues, Message message, Object argument) {
                        return queues.get((Integer) argument % queues.size());
                    }
                }, key)));
            }
        } else if (mode.equals("async")) {
            final CountDownLatch done = new CountDownLatch(count);
            final List<Object> found = Collections.synchronizedList(results);
            for (int i = 0; i < count; i++)
                producer.send(build(o, i), new SendCallback() {
                    public void onSuccess(SendResult sent) { found.add(result(sent)); done.countDown(); }
                    public void onException(Throwable e) { found.add(String.valueOf(e)); done.countDown(); }
                });
            if (!done.await(30, TimeUnit.SECONDS)) throw new TimeoutException("async sends");
        } else throw new IllegalArgumentException(mode);
        return results;
    }

    static Object startConsumer(final Map<String, String> o) throws Exception {
        //#if modern
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(o.get("group"), hook(o), new AllocateMessageQueueAveragely());
        //#else
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(o.get("group"));
        //#endif
        consumer.setNamesrvAddr(o.get("namesrv"));
        consumer.setInstanceName(o.getOrDefault("instance", o.get("id") + System.nanoTime()));
        consumer.setConsumeFromWhere(o.getOrDefault("from", "first").equals("first")
            ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.setMessageModel(o.getOrDefault("model", "cluster").equals("cluster") ? MessageModel.CLUSTERING : MessageModel.BROADCASTING);
        consumer.setConsumeMessageBatchMaxSize(number(o, "batch", 1));
        consumer.setPullBatchSize(number(o, "pullBatch", 32));
        //#if modern
        // What was handed out is consumed and committed before a shutdown is over: a listener is not done when it counts.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        if (o.containsKey("maxReconsume")) consumer.setMaxReconsumeTimes(number(o, "maxReconsume", 16));
        if (o.containsKey("sql")) consumer.subscribe(o.get("topic"), MessageSelector.bySql(o.get("sql")));
        else
        //#endif
        for (String topic : o.get("topic").split(",")) consumer.subscribe(topic, o.getOrDefault("tags", "*"));
        final Queue<Map<String, Object>> received = new ConcurrentLinkedQueue<>();
        RECEIVED.put(o.get("id"), received);
        final int failures = number(o, "fail", 0);
        final int pause = number(o, "pauseMs", 0);
        if (o.containsKey("orderly")) {
            consumer.registerMessageListener(new MessageListenerOrderly() {
                public ConsumeOrderlyStatus consumeMessage(List<MessageExt> messages, ConsumeOrderlyContext context) {
                    for (MessageExt message : messages) received.add(message(message));
                    sleep(pause);
                    return ConsumeOrderlyStatus.SUCCESS;
                }
            });
        } else {
            consumer.registerMessageListener(new MessageListenerConcurrently() {
                public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
                    boolean fail = false;
                    for (MessageExt message : messages) {
                        received.add(message(message));
                        fail |= message.getReconsumeTimes() < failures;
                    }
                    sleep(pause);
                    if (fail && o.containsKey("level")) context.setDelayLevelWhenNextConsume(number(o, "level", 0));
                    return fail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
            });
        }
        consumer.start();
        CLIENTS.put(o.get("id"), consumer);
        return true;
    }

    static void sleep(int ms) {
        try {
            if (ms > 0) Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    static Object startPullConsumer(Map<String, String> o) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(o.get("group"));
        consumer.setNamesrvAddr(o.get("namesrv"));
        consumer.setInstanceName(o.getOrDefault("instance", o.get("id") + System.nanoTime()));
        consumer.start();
        CLIENTS.put(o.get("id"), consumer);
        return true;
    }

    static MessageQueue queueOf(DefaultMQPullConsumer consumer, Map<String, String> o) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(o.get("topic")));
        Collections.sort(queues);
        return queues.get(number(o, "queue", 0));
    }

    static Object pull(Map<String, String> o) throws Exception {
        DefaultMQPullConsumer consumer = (DefaultMQPullConsumer) CLIENTS.get(o.get("id"));
        MessageQueue queue = queueOf(consumer, o);
        long offset = Long.parseLong(o.get("offset"));
        String tags = o.getOrDefault("tags", "*");
        PullResult pulled = o.containsKey("block") ? consumer.pullBlockIfNotFound(queue, tags, offset, number(o, "max", 32))
            : consumer.pull(queue, tags, offset, number(o, "max", 32));
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("status", pulled.getPullStatus().toString());
        answer.put("next", pulled.getNextBeginOffset());
        answer.put("min", pulled.getMinOffset());
        answer.put("max", pulled.getMaxOffset());
        List<Object> messages = new ArrayList<>();
        if (pulled.getMsgFoundList() != null) for (MessageExt message : pulled.getMsgFoundList()) messages.add(message(message));
        answer.put("messages", messages);
        return answer;
    }

    static Object offsets(Map<String, String> o) throws Exception {
        DefaultMQPullConsumer consumer = (DefaultMQPullConsumer) CLIENTS.get(o.get("id"));
        MessageQueue queue = queueOf(consumer, o);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("min", consumer.minOffset(queue));
        answer.put("max", consumer.maxOffset(queue));
        if (o.containsKey("at")) answer.put("search", consumer.searchOffset(queue, Long.parseLong(o.get("at"))));
        if (o.containsKey("commit")) {
            consumer.updateConsumeOffset(queue, Long.parseLong(o.get("commit")));
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        }
        answer.put("committed", consumer.fetchConsumeOffset(queue, true));
        return answer;
    }

    static Object query(Map<String, String> o) throws Exception {
        DefaultMQProducer producer = (DefaultMQProducer) CLIENTS.get(o.get("id"));
        QueryResult found = producer.queryMessage(o.get("topic"), o.get("key"), number(o, "max", 32),
            Long.parseLong(o.getOrDefault("begin", "0")), Long.parseLong(o.getOrDefault("end", "" + Long.MAX_VALUE)));
        List<Object> messages = new ArrayList<>();
        for (MessageExt message : found.getMessageList()) messages.add(message(message));
        return messages;
    }

    static Object publishQueues(Map<String, String> o) throws Exception {
        List<MessageQueue> queues = ((DefaultMQProducer) CLIENTS.get(o.get("id"))).fetchPublishMessageQueues(o.get("topic"));
        Collections.sort(queues);
        List<Object> names = new ArrayList<>();
        for (MessageQueue queue : queues) names.add(queue.getBrokerName() + ":" + queue.getQueueId());
        return names;
    }

    static Object shutdown(String id) {
        Object client = CLIENTS.remove(id);
        if (client instanceof DefaultMQProducer) ((DefaultMQProducer) client).shutdown();
        else if (client instanceof DefaultMQPushConsumer) ((DefaultMQPushConsumer) client).shutdown();
        else if (client instanceof DefaultMQPullConsumer) ((DefaultMQPullConsumer) client).shutdown();
        //#if modern
        else if (client instanceof DefaultLitePullConsumer) ((DefaultLitePullConsumer) client).shutdown();
        //#endif
        return client != null;
    }

    //#if modern
    static LocalTransactionState state(String word) {
        return word.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
            : word.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    static Object startTransactionProducer(final Map<String, String> o) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(o.get("group"));
        producer.setNamesrvAddr(o.get("namesrv"));
        producer.setInstanceName(o.getOrDefault("instance", o.get("id") + System.nanoTime()));
        final Queue<Map<String, Object>> checked = new ConcurrentLinkedQueue<>();
        CHECKED.put(o.get("id"), checked);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state((String) argument);
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(message(message));
                return state(o.getOrDefault("check", "unknown"));
            }
        });
        producer.start();
        CLIENTS.put(o.get("id"), producer);
        return true;
    }

    static Object sendInTransaction(Map<String, String> o) throws Exception {
        TransactionMQProducer producer = (TransactionMQProducer) CLIENTS.get(o.get("id"));
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < number(o, "count", 1); i++)
            results.add(result(producer.sendMessageInTransaction(build(o, i), o.getOrDefault("state", "commit"))));
        return results;
    }

    static Object request(Map<String, String> o) throws Exception {
        DefaultMQProducer producer = (DefaultMQProducer) CLIENTS.get(o.get("id"));
        Message reply = producer.request(build(o, 0), number(o, "timeoutMs", 5000));
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    static Object startResponder(Map<String, String> o) throws Exception {
        final DefaultMQProducer producer = new DefaultMQProducer(o.get("group") + "-reply");
        producer.setNamesrvAddr(o.get("namesrv"));
        producer.setInstanceName(o.get("id") + System.nanoTime());
        producer.start();
        final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(o.get("group"));
        consumer.setNamesrvAddr(o.get("namesrv"));
        consumer.setInstanceName(o.get("id") + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(o.get("topic"), "*");
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
                for (MessageExt message : messages) {
                    try {
                        byte[] body = ("re:" + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                        producer.send(org.apache.rocketmq.client.utils.MessageUtil.createReplyMessage(message, body), 3000);
                    } catch (Exception e) {
                        e.printStackTrace();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        consumer.start();
        CLIENTS.put(o.get("id"), consumer);
        CLIENTS.put(o.get("id") + "-producer", producer);
        return true;
    }

    static Object startLite(Map<String, String> o) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(o.get("group"), hook(o));
        consumer.setNamesrvAddr(o.get("namesrv"));
        consumer.setInstanceName(o.get("id") + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(!o.containsKey("manual"));
        consumer.subscribe(o.get("topic"), o.getOrDefault("tags", "*"));
        consumer.start();
        CLIENTS.put(o.get("id"), consumer);
        return true;
    }

    static Object pollLite(Map<String, String> o) throws Exception {
        List<Object> messages = new ArrayList<>();
        for (MessageExt message : ((DefaultLitePullConsumer) CLIENTS.get(o.get("id"))).poll(number(o, "timeoutMs", 1000)))
            messages.add(message(message));
        return messages;
    }
    //#endif

    static Object drain(Queue<Map<String, Object>> queue) {
        List<Object> all = new ArrayList<>();
        for (Map<String, Object> one; (one = queue.poll()) != null; ) all.add(one);
        return all;
    }

    static Map<String, Object> result(SendResult sent) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("status", sent.getSendStatus().toString());
        answer.put("msgId", sent.getMsgId());
        //#if modern
        answer.put("offsetMsgId", sent.getOffsetMsgId());
        answer.put("transactionId", sent.getTransactionId());
        //#endif
        answer.put("broker", sent.getMessageQueue().getBrokerName());
        answer.put("queueId", sent.getMessageQueue().getQueueId());
        answer.put("queueOffset", sent.getQueueOffset());
        return answer;
    }

    static Map<String, Object> message(MessageExt message) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("topic", message.getTopic());
        answer.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        answer.put("msgId", message.getMsgId());
        answer.put("queueId", message.getQueueId());
        answer.put("queueOffset", message.getQueueOffset());
        answer.put("reconsumeTimes", message.getReconsumeTimes());
        answer.put("flag", message.getFlag());
        answer.put("sysFlag", message.getSysFlag());
        answer.put("bornTimestamp", message.getBornTimestamp());
        answer.put("storeTimestamp", message.getStoreTimestamp());
        answer.put("bornHost", String.valueOf(message.getBornHost()));
        answer.put("storeHost", String.valueOf(message.getStoreHost()));
        answer.put("properties", new TreeMap<String, Object>(message.getProperties()));
        answer.put("receivedAt", System.currentTimeMillis());
        return answer;
    }

    static String json(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    static void write(Object value, StringBuilder out) {
        if (value instanceof Map) {
            out.append('{');
            String comma = "";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(comma);
                write(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                comma = ",";
            }
            out.append('}');
        } else if (value instanceof Collection) {
            out.append('[');
            String comma = "";
            for (Object one : (Collection<?>) value) {
                out.append(comma);
                write(one, out);
                comma = ",";
            }
            out.append(']');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            out.append('"');
            for (char c : value.toString().toCharArray()) {
                if (c == '"' || c == '\\') out.append('\\').append(c);
                else if (c < 0x20 || c > 0x7e) out.append(String.format("\\u%04x", (int) c));
                else out.append(c);
            }
            out.append('"');
        }
    }
}
