package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Uses a feature that the broker may not support. Clients report that with an exception. */
final class UnsupportedFeatures {
    private static final Duration LIMIT = Duration.ofSeconds(20);
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long POLLS = LIMIT.dividedBy(POLL);

    private UnsupportedFeatures() {
    }

    static Object use(JsonNode command) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", command.get("bootstrap").asText());
        String topic = command.get("topic").asText();
        String id = command.get("identifier").asText();
        String feature = command.get("feature").asText();
        switch (feature) {
            case "transactional producer":
                settings.put("transactional.id", id);
                settings.put("max.block.ms", LIMIT.toMillis());
                try (KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                    producer.initTransactions();
                }
                return null;
            case "consumer group":
                settings.put("group.id", id);
                settings.put("group.protocol", "consumer");
                try (KafkaConsumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                    consumer.subscribe(List.of(topic));
                    for (long polls = 0; polls < POLLS; polls++) {
                        consumer.poll(POLL);
                    }
                }
                return null;
            case "share group":
                settings.put("group.id", id);
                try (KafkaShareConsumer<byte[], byte[]> consumer =
                        new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                    consumer.subscribe(List.of(topic));
                    // A poll of a share consumer throws at its end only.
                    for (long polls = 0; polls < POLLS; polls++) {
                        consumer.poll(POLL);
                    }
                }
                return null;
            default:
                try (Admin admin = Admin.create(settings)) {
                    return administrate(admin, feature, id);
                }
        }
    }

    private static Object administrate(Admin admin, String feature, String id) throws Exception {
        switch (feature) {
            case "describe share group":
                return admin.describeShareGroups(List.of(id)).all().get().toString();
            case "describe streams group":
                return admin.describeStreamsGroups(List.of(id)).all().get().toString();
            case "list transactions":
                return admin.listTransactions().all().get().toString();
            case "describe transaction":
                return admin.describeTransactions(List.of(id)).all().get().toString();
            case "fence producer":
                admin.fenceProducers(List.of(id)).all().get();
                return null;
            default:
                throw new IllegalArgumentException("no such feature: " + feature);
        }
    }
}
