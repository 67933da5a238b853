// Publishes what it reads, a line a message, through the unmodified Java client of RocketMQ.
//
//     java -cp 'lib/*' Weather.java REGISTRY TOPIC
//
// Lines are sent in batches, in their order. After each batch it prints how many lines were answered so far and how many
// were sent again because their answer did not come. It ends when its input has ended and all of it was answered.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

public class Weather {
    static final int BATCH_MESSAGES = 50;
    static final int SEND_TIMEOUT_MS = 3000;
    static final int RETRY_AFTER_MS = 50;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what the client prints is no answer
        DefaultMQProducer producer = new DefaultMQProducer("weather-stations");
        producer.setNamesrvAddr(arguments[0]);
        producer.setRetryTimesWhenSendFailed(0); // sending again is counted, so it is done here
        producer.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int answered = 0, resent = 0;
        for (List<Message> batch = take(in, arguments[1]); !batch.isEmpty(); batch = take(in, arguments[1])) {
            while (!send(producer, batch)) {
                resent += batch.size();
                Thread.sleep(RETRY_AFTER_MS);
            }
            answered += batch.size();
            out.println(answered + " " + resent);
            out.flush();
        }
        producer.shutdown();
        System.exit(0);
    }

    /** Waits for a line and returns it with those that are there already; nothing at the end of the input. */
    static List<Message> take(BufferedReader in, String topic) throws Exception {
        List<Message> batch = new ArrayList<>();
        do {
            String line = in.readLine();
            if (line == null) {
                break;
            }
            batch.add(message(topic, line));
        } while (batch.size() < BATCH_MESSAGES && in.ready());
        return batch;
    }

    /** Makes a message of a line "AIRPORT,...,HOUR": the airport is its tag, both are its key. */
    static Message message(String topic, String line) {
        String airport = line.substring(0, line.indexOf(',')), hour = line.substring(line.lastIndexOf(',') + 1);
        return new Message(topic, airport, airport + "|" + hour, line.getBytes(StandardCharsets.UTF_8));
    }

    static boolean send(DefaultMQProducer producer, List<Message> batch) throws InterruptedException {
        try {
            return producer.send(batch, SEND_TIMEOUT_MS).getSendStatus() == SendStatus.SEND_OK;
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) {
            System.err.println("not answered: " + e);
            return false;
        }
    }
}
