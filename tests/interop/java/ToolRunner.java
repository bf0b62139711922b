package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command-line tools in this process, one at a time, and captures output and exit
 * code. A tool's shutdown hooks run after its main method.
 */
final class ToolRunner {
    private final Switch out = new Switch(new FileOutputStream(FileDescriptor.err));
    private final Switch err = new Switch(new FileOutputStream(FileDescriptor.err));
    private final List<Runnable> hooks = new ArrayList<>();
    private Integer code;

    ToolRunner() {
        // Scala's Console keeps the first stream it sees, so one stream is redirected for each run.
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(this::exit);
        Exit.setHaltProcedure(this::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    }

    synchronized Map<String, Object> run(JsonNode command) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        String[] arguments = Values.strings(command.get("arguments")).toArray(new String[0]);
        System.setIn(new ByteArrayInputStream(command.path("stdin").asText("").getBytes(StandardCharsets.UTF_8)));
        code = null;
        hooks.clear();
        out.to = printed;
        err.to = complained;
        try {
            Class.forName(command.get("main").asText()).getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
        } catch (InvocationTargetException problem) {
            if (!(problem.getCause() instanceof Exited)) {
                problem.getCause().printStackTrace();
                code = 1;
            }
        } finally {
            for (Runnable hook : List.copyOf(hooks)) {
                hook.run();
            }
            System.out.flush();
            System.err.flush();
            out.to = out.home;
            err.to = err.home;
        }
        return Map.of("code", code == null ? 0 : code, "out", printed.toString(StandardCharsets.UTF_8),
            "err", complained.toString(StandardCharsets.UTF_8));
    }

    private void exit(int status, String message) {
        if (code == null) {
            code = status;
            if (message != null) {
                System.err.println(message);
            }
        }
        throw new Exited();
    }

    /** Thrown in place of System.exit. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1;
    }

    private static final class Switch extends OutputStream {
        private final OutputStream home;
        private volatile OutputStream to;

        Switch(OutputStream home) {
            this.home = home;
            this.to = home;
        }

        @Override
        public void write(int data) throws IOException {
            to.write(data);
        }

        @Override
        public void write(byte[] data, int offset, int length) throws IOException {
            to.write(data, offset, length);
        }
    }
}
