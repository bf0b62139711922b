package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A producer with a transactional id, which stays open over several commands. */
final class TransactionalProducer {
    private final KafkaProducer<byte[], byte[]> producer;

    TransactionalProducer(JsonNode command) {
        producer = new KafkaProducer<>(
            Values.settings(command.get("settings")), new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
    }

    Object perform(JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "begin":
                producer.beginTransaction();
                return null;
            case "send":
                List<Object> sent = new ArrayList<>();
                for (JsonNode each : command.get("records")) {
                    sent.add(producer.send(Production.record(command.get("topic").asText(), each)).get().offset());
                }
                return sent;
            case "sendOffsets":
                Map<TopicPartition, OffsetAndMetadata> offsets = Values.offsets(command.get("offsets"));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(command.get("group").asText()));
                return null;
            case "commitTransaction":
                producer.commitTransaction();
                return null;
            case "abortTransaction":
                producer.abortTransaction();
                return null;
            case "closeProducer":
                producer.close();
                return null;
            default:
                throw new IllegalArgumentException(command.toString());
        }
    }
}
