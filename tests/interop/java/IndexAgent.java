// RocketMQ's own index file class: `java -cp 'JARS/*' IndexAgent.java SLOTS ENTRIES PATH`. Commands on the input,
// tab-separated: `load`, `put KEY OFFSET MS`, `find KEY MOST BEGIN END`, `flush`; one answer for each.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.store.index.IndexFile;

public class IndexAgent {
    public static void main(String[] args) throws Exception {
        IndexFile file = new IndexFile(args[2], Integer.parseInt(args[0]), Integer.parseInt(args[1]), 0, 0);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        String line;
        while ((line = input.readLine()) != null) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "load" -> {
                    file.load();
                    output.println(file.getBeginTimestamp() + " " + file.getEndTimestamp() + " "
                        + file.getEndPhyOffset());
                }
                case "put" -> output.println(file.putKey(words[1], Long.parseLong(words[2]), Long.parseLong(words[3])));
                case "find" -> {
                    List<Long> offsets = new ArrayList<>();
                    file.selectPhyOffset(offsets, words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]),
                        Long.parseLong(words[4]));
                    output.println(offsets);
                }
                case "flush" -> {
                    file.flush();
                    output.println("flushed");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }
}
