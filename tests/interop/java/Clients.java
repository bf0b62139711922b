package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Kafka's Java clients and tools in one process, driven by lines of JSON on standard input. Every command has one
 * response line with its id on standard output; consumer events are further lines.
 */
public final class Clients {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Events events;
    private final ToolRunner tools = new ToolRunner();
    private final Administration administration = new Administration();
    private final Map<String, GroupConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, TransactionalProducer> producers = new ConcurrentHashMap<>();

    private Clients(Events events) {
        this.events = events;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream told = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        Clients clients = new Clients(new Events(told));
        BufferedReader commands = new BufferedReader(
            new InputStreamReader(new FileInputStream(FileDescriptor.in), StandardCharsets.UTF_8));
        // Commands run in parallel, because some take long (a tool, a close during a rebalance).
        ExecutorService threads = Executors.newCachedThreadPool(runnable -> {
            Thread thread = new Thread(runnable);
            thread.setDaemon(true);
            return thread;
        });
        String line;
        while ((line = commands.readLine()) != null) {
            JsonNode command = JSON.readTree(line);
            threads.execute(() -> clients.answer(command));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JsonNode command) {
        long id = command.get("id").asLong();
        try {
            events.answer(id, perform(command));
        } catch (Throwable problem) {
            Throwable cause = problem instanceof ExecutionException && problem.getCause() != null
                ? problem.getCause() : problem;
            events.refusal(id, cause);
        }
    }

    private Object perform(JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "tool":
                return tools.run(command);
            case "produce":
                return Production.produce(command);
            case "transactions":
                return Transactions.run(command);
            case "useUnsupported":
                return UnsupportedFeatures.use(command);
            case "admin":
                return administration.perform(command);
            case "open":
                GroupConsumer opened = new GroupConsumer(command, events);
                consumers.put(opened.name(), opened);
                opened.start();
                return null;
            case "openProducer":
                producers.put(command.get("producer").asText(), new TransactionalProducer(command));
                return null;
            default:
                if (command.has("producer")) {
                    return producers.get(command.get("producer").asText()).perform(command);
                }
                return consumers.get(command.get("consumer").asText()).perform(command);
        }
    }
}
