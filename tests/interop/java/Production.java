package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records with a new producer and returns where each went. */
final class Production {
    private Production() {
    }

    static Object produce(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                Values.settings(command.get("settings")), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode each : command.get("records")) {
                sent.add(producer.send(record(topic, each)));
            }
            producer.flush();
        }
        List<Object> found = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            RecordMetadata where = each.get();
            found.add(Map.of("partition", where.partition(), "offset", where.offset(), "timestamp", where.timestamp()));
        }
        return found;
    }

    static ProducerRecord<byte[], byte[]> record(String topic, JsonNode given) {
        Integer partition = given.hasNonNull("partition") ? given.get("partition").asInt() : null;
        Long timestamp = given.hasNonNull("timestamp") ? given.get("timestamp").asLong() : null;
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(topic, partition, timestamp, bytes(given.path("key")), bytes(given.path("value")));
        for (JsonNode header : given.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private static byte[] bytes(JsonNode given) {
        return given.isNull() || given.isMissingNode() ? null : given.asText().getBytes(StandardCharsets.UTF_8);
    }
}
