package moldau.interop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;

/** Lines of JSON: responses to commands, and consumer events with their time. */
final class Events {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream out;

    Events(PrintStream out) {
        this.out = out;
    }

    void answer(long id, Object result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("result", result);
        write(line);
    }

    void refusal(long id, Throwable problem) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("error", problem.getClass().getSimpleName());
        line.put("message", String.valueOf(problem.getMessage()));
        write(line);
    }

    /** The time is from the monotonic clock of the machine, which the reader shares. */
    void report(String consumer, String event, Map<String, ?> more) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("consumer", consumer);
        line.put("event", event);
        line.put("at_ns", System.nanoTime());
        line.putAll(more);
        write(line);
    }

    private synchronized void write(Map<String, Object> line) {
        try {
            out.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException problem) {
            throw new IllegalStateException(problem);
        }
        out.flush();
    }
}
