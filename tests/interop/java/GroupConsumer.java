package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A consumer in its own thread: it polls, reports events, and executes commands between two polls. */
final class GroupConsumer implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(50);

    private final String name;
    private final Events events;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final ConcurrentLinkedQueue<FutureTask<Object>> asked = new ConcurrentLinkedQueue<>();
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile CountDownLatch stalled = new CountDownLatch(0);
    private CloseOptions closing;

    GroupConsumer(JsonNode command, Events events) {
        this.name = command.get("consumer").asText();
        this.events = events;
        Map<String, Object> settings = new HashMap<>();
        Values.settings(command.get("settings")).forEach((key, value) -> settings.put((String) key, value));
        settings.putIfAbsent(ConsumerConfig.CLIENT_ID_CONFIG, name);
        settings.put(ConsumerConfig.INTERCEPTOR_CLASSES_CONFIG, List.of(CommitInterceptor.class.getName()));
        settings.put(CommitInterceptor.CONSUMER, this);
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        if (command.has("pattern")) {
            consumer.subscribe(Pattern.compile(command.get("pattern").asText()), this);
        } else if (command.has("partitions")) {
            consumer.assign(Values.partitions(command.get("partitions")));
        } else {
            consumer.subscribe(Values.strings(command.get("topics")), this);
        }
    }

    String name() {
        return name;
    }

    void start() {
        Thread thread = new Thread(this::pollUntilClosed, "consumer-" + name);
        thread.setDaemon(true);
        thread.start();
    }

    void report(String event, Map<String, ?> more) {
        events.report(name, event, more);
    }

    Object perform(JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "stall":
                return soon(() -> {
                    // Set in the polling thread: set earlier, that thread could wait before it runs this task.
                    stalled = new CountDownLatch(1);
                    report("stalled", Map.of());
                    return null;
                }).get();
            case "go":
                stalled.countDown();
                return null;
            case "close":
                boolean leave = !command.path("stay").asBoolean(false);
                soon(() -> closing = CloseOptions.groupMembershipOperation(leave
                    ? CloseOptions.GroupMembershipOperation.DEFAULT
                    : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
                ended.get();
                return null;
            default:
                return soon(() -> between(command)).get();
        }
    }

    private Future<Object> soon(Callable<Object> work) {
        FutureTask<Object> task = new FutureTask<>(work);
        asked.add(task);
        ended.whenComplete((nothing, problem) -> task.cancel(false));
        return task;
    }

    private void pollUntilClosed() {
        try {
            while (closing == null) {
                try {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                        report("record", described(record));
                    }
                } catch (RuntimeException problem) {
                    report("error", Map.of("error", problem.getClass().getSimpleName(),
                        "message", String.valueOf(problem.getMessage())));
                    // Fatal errors do not go away with more polls.
                    closing = CloseOptions.timeout(Duration.ofSeconds(5));
                }
                FutureTask<Object> task;
                while ((task = asked.poll()) != null) {
                    task.run();
                }
                stalled.await();
            }
            consumer.close(closing);
        } catch (Throwable problem) {
            report("error", Map.of("error", problem.getClass().getSimpleName(),
                "message", String.valueOf(problem.getMessage())));
        } finally {
            report("closed", Map.of());
            ended.complete(null);
        }
    }

    private Object between(JsonNode command) {
        switch (command.get("do").asText()) {
            case "commit":
                if (command.has("offsets")) {
                    consumer.commitSync(Values.offsets(command.get("offsets")));
                } else {
                    consumer.commitSync();
                }
                return null;
            case "committed":
                return Values.writtenOffsets(
                    consumer.committed(new HashSet<>(Values.partitions(command.get("partitions")))));
            case "position":
                return consumer.position(Values.partition(command.get("partition").asText()));
            case "seek":
                consumer.seek(Values.partition(command.get("partition").asText()), command.get("offset").asLong());
                return null;
            case "beginning":
                return longs(consumer.beginningOffsets(Values.partitions(command.get("partitions"))));
            case "end":
                return longs(consumer.endOffsets(Values.partitions(command.get("partitions"))));
            case "times":
                Map<TopicPartition, Long> wanted = new HashMap<>();
                command.get("times").forEachEntry(
                    (partition, time) -> wanted.put(Values.partition(partition), time.asLong()));
                Map<String, Object> found = new LinkedHashMap<>();
                Map<TopicPartition, OffsetAndTimestamp> times = consumer.offsetsForTimes(wanted);
                times.forEach((partition, at) -> found.put(Values.written(partition),
                    at == null ? null : List.of(at.offset(), at.timestamp())));
                return found;
            case "rebalance":
                consumer.enforceRebalance();
                return null;
            case "member":
                return member();
            case "preferredReplica":
                return preferredReplica(Values.partition(command.get("partition").asText()));
            default:
                throw new IllegalArgumentException("no such command: " + command.get("do").asText());
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        tellOfPartitions("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        tellOfPartitions("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        tellOfPartitions("lost", partitions);
    }

    private void tellOfPartitions(String event, Collection<TopicPartition> partitions) {
        Map<String, Object> more = new LinkedHashMap<>(member());
        more.put("partitions", Values.written(partitions));
        report(event, more);
    }

    private Map<String, Object> member() {
        ConsumerGroupMetadata group = consumer.groupMetadata();
        return Map.of("generation", group.generationId(), "member", group.memberId());
    }

    /** The preferred read replica from the client's metric; -1 for none. */
    private int preferredReplica(TopicPartition partition) {
        return consumer.metrics().values().stream()
            .filter(each -> each.metricName().name().equals("preferred-read-replica")
                && partition.topic().equals(each.metricName().tags().get("topic"))
                && String.valueOf(partition.partition()).equals(each.metricName().tags().get("partition")))
            .mapToInt(each -> ((Number) each.metricValue()).intValue()).findFirst().orElse(-1);
    }

    private static Map<String, Long> longs(Map<TopicPartition, Long> offsets) {
        Map<String, Long> found = new LinkedHashMap<>();
        offsets.forEach((partition, offset) -> found.put(Values.written(partition), offset));
        return found;
    }

    private static Map<String, Object> described(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("partition", record.topic() + ":" + record.partition());
        found.put("offset", record.offset());
        found.put("timestamp", record.timestamp());
        found.put("key", text(record.key()));
        found.put("value", text(record.value()));
        found.put("headers", Arrays.stream(record.headers().toArray())
            .map(each -> Arrays.asList(each.key(), text(each.value()))).toList());
        return found;
    }

    private static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }
}
