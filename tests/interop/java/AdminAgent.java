// The unmodified mqadmin, many commands in one process: a line of words separated by tabs is one command, the answer is
// what it printed, then a line with only the character 0x04. Starting a JVM for each would take most of the time.

import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class AdminAgent {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } catch (Throwable e) {
                e.printStackTrace(capture);
            }
            capture.flush();
            out.write(printed.toByteArray());
            out.print("\n\u0004\n");
            out.flush();
        }
        System.exit(0);
    }
}
